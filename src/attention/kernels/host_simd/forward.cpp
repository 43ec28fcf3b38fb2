#include <cmath>
#include <limits>

#include <annulus/base/division.hpp>

#include "attention/kernels/host_simd/host_simd.hpp"
#include "attention/kernels/host_simd/key_spans.hpp"
#include "attention/kernels/host_simd/order.hpp"
#include "attention/kernels/host_simd/pack.hpp"
#include "attention/kernels/host_simd/pointwise.hpp"
#include "attention/kernels/host_simd/products.hpp"
#include "attention/kernels/host_simd/query_rows.hpp"
#include "attention/kernels/merge_row.hpp"
#include "base/kokkos/execution/region.hpp"

// Queries are the lanes: S^T = K·Q^T and O^T = V^T·P^T. Then K and V are the broadcast operands, which the
// products read as they lie; only Q is transposed, once a query tile; and maximum and sum of a softmax row
// are lane-wise.
namespace annulus::attention::host_simd {
namespace {

constexpr int forward_q_rows = forward_panels * panel;
constexpr double ln_2 = 0.6931471805599453;

/// Scratch of one thread.
struct ForwardWorkspace {
  int stride, v_stride;           // of packed key and value rows
  float *q, *out;                 // (forward_panels, head_dim, panel), and v_head_dim
  float *keys, *values;           // (forward_kv_rows + block_rows, head_dim), and v_head_dim
  float* scores;                  // (forward_kv_rows + block_rows, panel)
  float *highest, *sum, *factor;  // (forward_q_rows), (forward_q_rows), (panel)
  std::size_t bytes;

  ForwardWorkspace(const HeadDims& dims, float* scratch)
      : stride(packed_stride(dims.qk)), v_stride(packed_stride(dims.v)) {
    Carve carve(scratch);
    q = carve.take(forward_q_rows * dims.qk);
    out = carve.take(forward_q_rows * dims.v);
    keys = carve.take((forward_kv_rows + block_rows) * stride);
    values = carve.take((forward_kv_rows + block_rows) * v_stride);
    scores = carve.take((forward_kv_rows + block_rows) * panel);
    highest = carve.take(forward_q_rows);
    sum = carve.take(forward_q_rows);
    factor = carve.take(panel);
    bytes = carve.bytes();
  }
};

/// One query tile of one head against keys.
template <class T>
class QueryTile {
 public:
  QueryTile(const Operands<T, HostExec>& in, const KeySpan* spans, int batch, int head,
            const QueryRows& queries, const ForwardWorkspace& work)
      : in_(in),
        spans_(spans),
        batch_(batch),
        head_(head),
        kv_head_(head / static_cast<int>(in.q.extent(1) / in.k.extent(1))),
        queries_(queries),
        dims_(HeadDims::of(in)),
        work_(work) {}

  /// Key rows that the queries may see.
  RowRange seen() const { return {spans_[queries_(0)].begin, spans_[queries_(queries_.count - 1)].end}; }

  /// Against the key rows `keys`.
  void run(RowRange keys, const Strided4<float, HostExec>& out, const Strided3<float, HostExec>& lse) const {
    const std::int64_t begin = std::max(keys.begin, seen().begin), end = std::min(keys.end, seen().end);
    if (begin >= end) return;  // no query of the tile has a key
    start();
    for (std::int64_t at = begin; at < end; at += forward_kv_rows)
      add_keys({at, std::min(at + forward_kv_rows, end)});
    merge(out, lse);
  }

 private:
  int panels() const { return ceil_divide(queries_.count, panel); }
  QueryRows panel_queries(int p) const {
    return queries_.slice(p * panel, std::min((p + 1) * panel, queries_.count));
  }

  void start() const {
    const auto factor = in_.soft_cap > 0.0f ? in_.scale / in_.soft_cap
                                            : static_cast<float>(log2_e * static_cast<double>(in_.scale));
    for (int p = 0; p < panels(); ++p) {
      const QueryRows rows = panel_queries(p);
      pack_panel([&](int lane) { return &in_.q(batch_, head_, rows(lane), 0); }, rows.count, dims_.qk, factor,
                 work_.q + p * dims_.qk * panel);
    }
    std::fill_n(work_.out, panels() * dims_.v * panel, 0.0f);
    std::fill_n(work_.highest, forward_q_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(work_.sum, forward_q_rows, 0.0f);
  }

  void add_keys(RowRange keys) const {
    const Coverage coverage = coverage_of(keys);
    if (coverage == Coverage::empty) return;
    const int count = static_cast<int>(keys.size());
    pack_rows(StridedRows(&in_.k(batch_, kv_head_, keys.begin, 0), in_.k.stride(2)), count, dims_.qk,
              block_rows, {work_.keys, work_.stride});
    pack_rows(StridedRows(&in_.v(batch_, kv_head_, keys.begin, 0), in_.v.stride(2)), count, dims_.v, 0,
              {work_.values, work_.v_stride});
    for (int p = 0; p < panels(); ++p) add_keys_to_panel(p, keys, coverage == Coverage::partial);
  }

  /// Listed queries have been chosen by the mask's blocks.
  Coverage coverage_of(RowRange keys) const {
    if (queries_.listed != nullptr) return coverage_of_spans(spans_, queries_, keys);
    const RowRange rows{queries_.first, queries_.first + queries_.count};
    return in_.mask.classify(in_.q_positions.slice(rows), in_.keys().slice(keys));
  }

  void add_keys_to_panel(int p, RowRange keys, bool partial) const {
    const QueryRows queries = panel_queries(p);
    RowRange seen = keys;  // what any query of the panel can see: causal tiles on the diagonal shrink here
    if (partial) {
      seen.begin = std::max(seen.begin, spans_[queries(0)].begin);
      seen.end = std::min(seen.end, spans_[queries(queries.count - 1)].end);
      if (seen.empty()) return;
    }
    const int vectors = static_cast<int>(ceil_divide(queries.count, width)),
              count = static_cast<int>(seen.size());
    const std::ptrdiff_t skipped = seen.begin - keys.begin;
    multiply({round_up(count, block_rows), vectors, dims_.qk},
             {work_.keys + skipped * work_.stride, work_.stride}, {work_.q + p * dims_.qk * panel, panel},
             {work_.scores, panel});
    if (in_.soft_cap > 0.0f) cap_scores(count, vectors, work_.scores, cap_in_base_2(in_.soft_cap));
    if (partial) {
      mask_tile({in_.mask, in_.q_positions, in_.keys(), spans_}, queries, seen, {work_.scores, 1, panel});
    }
    softmax(count, vectors, work_.scores, work_.highest + p * panel, work_.sum + p * panel, work_.factor);
    accumulate({dims_.v, vectors, count}, {work_.values + skipped * work_.v_stride, work_.v_stride},
               {work_.scores, panel}, work_.factor, {work_.out + p * dims_.v * panel, panel});
  }

  void merge(const Strided4<float, HostExec>& out, const Strided3<float, HostExec>& lse) const {
    for (int row = 0; row < queries_.count; ++row) {
      const std::int64_t i = queries_(row);
      const float sum = work_.sum[row];
      if (sum == 0.0f) continue;  // a query without keys leaves the running result as it is
      const auto block_lse = static_cast<float>(ln_2 * static_cast<double>(work_.highest[row]) +
                                                std::log(static_cast<double>(sum)));
      const RowMerge merge = RowMerge::of(lse(batch_, head_, i), block_lse);
      lse(batch_, head_, i) = merge.lse;
      const float share = merge.weight / sum, kept = 1.0f - merge.weight;
      const float* from = work_.out + (row / panel) * dims_.v * panel + row % panel;
      float* to = &out(batch_, head_, i, 0);
      for (int c = 0; c < dims_.v; ++c) to[c] = kept * to[c] + share * from[c * panel];
    }
  }

  const Operands<T, HostExec>& in_;
  const KeySpan* spans_;
  int batch_, head_, kv_head_;
  QueryRows queries_;
  HeadDims dims_;
  const ForwardWorkspace& work_;
};

/// The queries of a tile against all keys: block by block where each query has blocks of its own, those that
/// have the block together.
template <class T>
void run_tile(const Operands<T, HostExec>& in, const KeySpan* spans, int batch, int head, RowRange queries,
              const ForwardWorkspace& work, const ForwardArrays<T, HostExec>& results) {
  const auto run = [&](const Operands<T, HostExec>& of, const QueryRows& rows, RowRange keys) {
    QueryTile<T>(of, spans, batch, head, rows, work).run(keys, results.out, results.lse);
  };
  const RowRange seen{spans[queries.begin].begin, spans[queries.end - 1].end};
  if (in.mask.query_blocks == nullptr) return run(in, QueryRows::of(queries), seen);
  const RowMask mask{in.mask, in.q_positions, in.keys(), spans};
  Operands<T, HostExec> without_blocks = in;
  without_blocks.mask.query_blocks = nullptr;
  std::int32_t rows[gathered_q_rows];
  for (std::int64_t begin = seen.begin, end; begin < seen.end; begin = end) {
    const std::int64_t column = in.kv_positions(begin) / in.mask.block_size;
    end = std::min(seen.end, in.kv_positions.rows_below((column + 1) * in.mask.block_size));
    const int count = gather_rows(mask, queries, {column, column}, {begin, end}, rows);
    for (int first = 0; first < count; first += forward_q_rows)
      run(without_blocks, {0, std::min(forward_q_rows, count - first), rows + first}, {begin, end});
  }
}

}  // namespace

template <class T>
bool applies(const Operands<T, HostExec>& in) {
  const auto takes = [](std::size_t dim) { return dim >= 16 && dim <= 256 && dim % 8 == 0; };
  return takes(in.q.extent(3)) && takes(in.v.extent(3)) && in.q.stride(3) == 1 && in.k.stride(3) == 1 &&
         in.v.stride(3) == 1;
}

template <class T>
void forward(const HostExec& exec, const Operands<T, HostExec>& in, const Strided4<float, HostExec>& out,
             const Strided3<float, HostExec>& lse) {
  const auto batch = static_cast<int>(in.q.extent(0)), heads = static_cast<int>(in.q.extent(1));
  const auto rows = static_cast<std::int64_t>(in.q.extent(2));
  const HeadDims dims = HeadDims::of(in);
  if (batch == 0 || heads == 0 || rows == 0 || in.k.extent(2) == 0) return;
  const Region region("annulus::attention::host_simd::forward");

  const auto spans = key_spans(exec, in.q_positions, in.keys(), in.mask);
  const int tile_rows = rows_of_tile(in.mask, forward_q_rows),
            tiles = static_cast<int>(ceil_divide<std::int64_t>(rows, tile_rows)), sequences = batch * heads;
  const TicketOrder order(sequences, tiles, exec.concurrency());
  using Policy = Kokkos::TeamPolicy<HostExec, Kokkos::Schedule<Kokkos::Dynamic>>;
  const std::size_t scratch = ForwardWorkspace(dims, nullptr).bytes + 64;
  Policy policy(exec, tiles * sequences, 1);
  policy.set_scratch_size(1, Kokkos::PerTeam(static_cast<int>(scratch))).set_chunk_size(1);
  Kokkos::parallel_for(
      "annulus::attention::host_simd::forward", policy,
      [=, spans = spans.view()](const typename Policy::member_type& member) {
        const auto [sequence, place] = order(member.league_rank());
        const std::int64_t tile = tiles - 1 - place;  // under a causal mask late rows have the most keys
        auto* memory = static_cast<float*>(member.team_scratch(1).get_shmem_aligned(scratch - 64, 64));
        const RowRange queries{tile * tile_rows, std::min(rows, (tile + 1) * tile_rows)};
        run_tile<T>(in, spans.data(), sequence / heads, sequence % heads, queries,
                    ForwardWorkspace(dims, memory), {.out = out, .lse = lse});
      });
}

#define ANNULUS_INSTANTIATE(T)                                                                           \
  template bool applies(const Operands<T, HostExec>&);                                                   \
  template void forward(const HostExec&, const Operands<T, HostExec>&, const Strided4<float, HostExec>&, \
                        const Strided3<float, HostExec>&);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::attention::host_simd
