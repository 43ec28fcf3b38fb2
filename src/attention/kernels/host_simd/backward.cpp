#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include <annulus/base/division.hpp>

#include "attention/kernels/host_simd/host_simd.hpp"
#include "attention/kernels/host_simd/key_spans.hpp"
#include "attention/kernels/host_simd/order.hpp"
#include "attention/kernels/host_simd/pack.hpp"
#include "attention/kernels/host_simd/pointwise.hpp"
#include "attention/kernels/host_simd/products.hpp"
#include "attention/kernels/host_simd/query_rows.hpp"
#include "attention/kernels/host_simd/scratch.hpp"
#include "base/kokkos/execution/region.hpp"

// Keys are the lanes: S = Q·K^T and dP = dO·V^T, then dV^T += dO^T·P and dK^T += Q^T·dS for the keys of a
// tile, which one thread owns, and dQ = dS·K, to which all key tiles add. Q, dO and K are read as they lie;
// K^T and V^T are transposed once a key tile. Each product is computed once: five in all.
namespace annulus::attention::host_simd {
namespace {

constexpr int max_panels = backward_panels(16);
static_assert(backward_panels(256) <= max_panels);

/// Scratch of one thread.
struct BackwardWorkspace {
  int kv_rows, stride, v_stride, score_stride;
  float *k_panels, *dk_panels;  // (panels, head_dim, panel); k scaled for the scores
  float *v_panels, *dv_panels;  // (panels, v_head_dim, panel)
  float* keys;                  // (kv_rows, head_dim)
  float *q, *d_out, *dq;        // (backward_q_rows, head_dim), d_out v_head_dim
  float* scores;                // (backward_q_rows, panel)
  float* d_scores;              // (backward_q_rows, kv_rows)
  float *lse2, *d;              // (backward_q_rows)
  std::size_t bytes;

  BackwardWorkspace(const HeadDims& dims, float* scratch)
      : kv_rows(backward_panels(dims.larger()) * panel),
        stride(packed_stride(dims.qk)),
        v_stride(packed_stride(dims.v)),
        score_stride(packed_stride(kv_rows)) {
    Carve carve(scratch);
    for (float** panels : {&k_panels, &dk_panels}) *panels = carve.take(kv_rows * dims.qk);
    for (float** panels : {&v_panels, &dv_panels}) *panels = carve.take(kv_rows * dims.v);
    keys = carve.take(kv_rows * stride);
    for (float** rows : {&q, &dq}) *rows = carve.take(backward_q_rows * stride);
    d_out = carve.take(backward_q_rows * v_stride);
    scores = carve.take(backward_q_rows * panel);
    d_scores = carve.take(backward_q_rows * score_stride);
    lse2 = carve.take(backward_q_rows);
    d = carve.take(backward_q_rows);
    bytes = carve.bytes();
  }
};

using Counters = Array1<std::int32_t, HostExec>;

/// Everything that a launch works on.
template <class T>
struct BackwardLaunch {
  Operands<T, HostExec> in;
  BackwardArrays<T, HostExec> arrays;
  KeySpans spans;
  /// Counters of each (batch, head, query tile): 1 + the last key tile that added its dQ; behind them the
  /// next ticket.
  Counters dq_semaphores;

  int batch() const { return static_cast<int>(in.q.extent(0)); }
  int heads() const { return static_cast<int>(in.q.extent(1)); }
  int kv_heads() const { return static_cast<int>(in.k.extent(1)); }
  HeadDims dims() const { return HeadDims::of(in); }
  int kv_rows() const { return backward_panels(dims().larger()) * panel; }
  /// Queries of a tile: of backward_q_rows or, where each query has blocks, of so many that rows are gathered
  /// from.
  int q_rows() const { return rows_of_tile(in.mask, backward_q_rows); }
  int query_tiles() const {
    return static_cast<int>(ceil_divide<std::size_t>(in.q.extent(2), static_cast<std::size_t>(q_rows())));
  }
  int key_tiles() const { return static_cast<int>(ceil_divide(in.k.extent(2), kv_rows())); }

  std::size_t semaphores() const { return static_cast<std::size_t>(batch()) * heads() * query_tiles(); }

  RowRange queries(int tile) const {
    return {std::int64_t{tile} * q_rows(), std::min<std::int64_t>((std::int64_t{tile} + 1) * q_rows(),
                                                                  static_cast<std::int64_t>(in.q.extent(2)))};
  }
  RowRange keys(int tile) const {
    return {std::int64_t{tile} * kv_rows(),
            std::min<std::int64_t>((std::int64_t{tile} + 1) * kv_rows(),
                                   static_cast<std::int64_t>(in.k.extent(2)))};
  }

  Coverage coverage(int query_tile, int key_tile) const {
    const RowRange q = queries(query_tile), k = keys(key_tile);
    if (spans(q.end - 1).end <= k.begin || spans(q.begin).begin >= k.end) return Coverage::empty;
    return in.mask.classify(in.q_positions.slice(q), in.keys().slice(k));
  }

  /// The value of the semaphore of `query_tile` at which `key_tile` adds: sums are made in the order of the
  /// key tiles, so that they do not depend on who is faster. All key tiles between the two are empty, and so
  /// nobody else scans them again.
  int semaphore_value(int query_tile, int key_tile) const {
    const std::int64_t first_key = spans(queries(query_tile).begin).begin;
    for (int before = key_tile; before > 0 && keys(before - 1).end > first_key; --before) {
      if (coverage(query_tile, before - 1) != Coverage::empty) return before;
    }
    return 0;
  }
};

/// One key tile of one kv head against all queries of all heads that share it.
template <class T>
class KeyTile {
 public:
  KeyTile(const BackwardLaunch<T>& problem, int batch, int kv_head, int tile, const BackwardWorkspace& work)
      : problem_(problem),
        batch_(batch),
        kv_head_(kv_head),
        tile_(tile),
        keys_(problem.keys(tile)),
        dims_(problem.dims()),
        work_(work) {}

  void run() {
    // Spans grow with the query, so the queries that can see a key of this tile are an interval. Where it is
    // empty inside a query tile, that tile may still count as covered, and then others wait for its
    // semaphore: it is visited.
    const KeySpan* first = problem_.spans.data();
    const KeySpan* last = first + problem_.spans.extent(0);
    const KeySpan* begin =
        std::partition_point(first, last, [&](const KeySpan& span) { return span.end <= keys_.begin; });
    const KeySpan* end =
        std::partition_point(begin, last, [&](const KeySpan& span) { return span.begin < keys_.end; });
    const auto first_tile = static_cast<int>((begin - first) / problem_.q_rows());
    const auto last_tile = static_cast<int>((end - first - 1) / problem_.q_rows());
    const int group = problem_.heads() / problem_.kv_heads();
    for (int head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) {
      for (int tile = first_tile; tile <= last_tile; ++tile) {
        const Coverage coverage = problem_.coverage(tile, tile_);
        if (coverage == Coverage::empty) continue;
        if (!started_) start();
        add_tile(head, tile, coverage == Coverage::partial);
      }
    }
    if (started_) finish();
  }

 private:
  int panels() const { return static_cast<int>(ceil_divide(keys_.size(), panel)); }
  RowRange panel_keys(int p) const {
    return {keys_.begin + p * panel, std::min<std::int64_t>(keys_.begin + (p + 1) * panel, keys_.end)};
  }
  int panel_offset(int p) const { return p * dims_.qk * panel; }
  int v_panel_offset(int p) const { return p * dims_.v * panel; }

  void start() {
    const auto& in = problem_.in;
    const float factor = in.soft_cap > 0.0f ? in.scale / in.soft_cap : static_cast<float>(log2_e) * in.scale;
    for (int p = 0; p < panels(); ++p) {
      const RowRange keys = panel_keys(p);
      const auto count = static_cast<int>(keys.size());
      pack_panel(StridedRows(&in.k(batch_, kv_head_, keys.begin, 0), in.k.stride(2)), count, dims_.qk, factor,
                 work_.k_panels + panel_offset(p));
      pack_panel(StridedRows(&in.v(batch_, kv_head_, keys.begin, 0), in.v.stride(2)), count, dims_.v, 1.0f,
                 work_.v_panels + v_panel_offset(p));
    }
    pack_rows(StridedRows(&in.k(batch_, kv_head_, keys_.begin, 0), in.k.stride(2)),
              static_cast<int>(keys_.size()), dims_.qk, 0, {work_.keys, work_.stride});
    std::fill_n(work_.dk_panels, panels() * dims_.qk * panel, 0.0f);
    std::fill_n(work_.dv_panels, panels() * dims_.v * panel, 0.0f);
    started_ = true;
  }

  /// When this key tile adds its dQ of a query tile.
  struct DqTurn {
    std::atomic_ref<std::int32_t> semaphore;
    int value;

    void wait() const {
      // The key tile waited for was started before this one, so it is running on another thread or done.
      while (semaphore.load(std::memory_order_acquire) != value) std::this_thread::yield();
    }
  };
  DqTurn turn_of(int head, int tile) const {
    const std::size_t slot =
        (static_cast<std::size_t>(batch_) * problem_.heads() + head) * problem_.query_tiles() + tile;
    return {std::atomic_ref<std::int32_t>(problem_.dq_semaphores(slot)),
            problem_.semaphore_value(tile, tile_)};
  }

  /// The queries of a tile; where each query has blocks, those that have one of the keys', gathered.
  void add_tile(int head, int tile, bool partial) const {
    const auto& in = problem_.in;
    const RowRange queries = problem_.queries(tile);
    const DqTurn turn = turn_of(head, tile);
    if (in.mask.query_blocks == nullptr) {
      add_queries(head, QueryRows::of(queries), in.mask, partial, turn);
    } else {
      const RowMask mask{in.mask, in.q_positions, in.keys(), problem_.spans.data()};
      const BlockColumns columns = BlockColumns::of(in.mask, in.keys().slice(keys_));
      MaskRule inside = in.mask;  // of the gathered queries, which have the block where the keys have one
      if (columns.one()) inside.query_blocks = nullptr;
      std::int32_t rows[gathered_q_rows];
      const int count = gather_rows(mask, queries, columns, keys_, rows);
      for (int first = 0; first < count; first += backward_q_rows) {
        const QueryRows some{0, std::min(backward_q_rows, count - first), rows + first};
        const Coverage coverage = coverage_of_spans(problem_.spans.data(), some, keys_);
        add_queries(head, some, inside, !columns.one() || coverage == Coverage::partial, turn);
      }
      if (count == 0) turn.wait();
    }
    turn.semaphore.store(tile_ + 1, std::memory_order_release);
  }

  void add_queries(int head, const QueryRows& queries, const MaskRule& mask, bool partial,
                   const DqTurn& turn) const {
    pack_queries(head, queries);
    RowRange used[max_panels];  // rows of the tile for which panel p has scores, in whole register blocks
    for (int p = 0; p < panels(); ++p) used[p] = add_queries_to_panel(p, queries, mask, partial);
    multiply_keys(used, round_up(queries.count, block_rows));
    turn.wait();
    const auto& dq = problem_.arrays.dq;
    add_rows({work_.dq, work_.stride}, queries.count, dims_.qk, problem_.in.scale,
             [&](int row) { return &dq(batch_, head, queries(row), 0); });
  }

  void pack_queries(int head, const QueryRows& queries) const {
    const auto& in = problem_.in;
    const int rows = queries.count, padding = round_up(rows, block_rows) - rows;
    const auto& d_out = problem_.arrays.d_out;
    pack_rows([&](int row) { return &in.q(batch_, head, queries(row), 0); }, rows, dims_.qk, padding,
              {work_.q, work_.stride});
    pack_rows([&](int row) { return &d_out(batch_, head, queries(row), 0); }, rows, dims_.v, padding,
              {work_.d_out, work_.v_stride});
    // P = 2^(S − ∞) = 0 is what queries without keys and padding need.
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (int row = 0; row < rows; ++row) {
      const float lse = problem_.arrays.lse(batch_, head, queries(row));
      work_.lse2[row] = lse == -infinity ? infinity : static_cast<float>(log2_e) * lse;
      work_.d[row] = problem_.arrays.d(batch_, head, queries(row));
    }
    std::fill_n(work_.lse2 + rows, padding, infinity);
    std::fill_n(work_.d + rows, padding, 0.0f);
  }

  RowRange add_queries_to_panel(int p, const QueryRows& queries, const MaskRule& mask, bool partial) const {
    const RowRange keys = panel_keys(p);
    const int vectors = static_cast<int>(ceil_divide(keys.size(), width));
    int begin = 0, end = queries.count;
    if (partial) {  // only queries that see a key of the panel: causal tiles on the diagonal shrink here
      const auto span = [&](int i) { return problem_.spans(queries(i)); };
      while (begin < end && span(begin).end <= keys.begin) ++begin;
      while (begin < end && span(end - 1).begin >= keys.end) --end;
      if (begin == end) return {0, 0};
      begin = begin / block_rows * block_rows;
    }
    const int rows = round_up(end - begin, block_rows);
    const ConstStridedTile q{work_.q + begin * work_.stride, work_.stride};
    const ConstStridedTile d_out{work_.d_out + begin * work_.v_stride, work_.v_stride};
    const StridedTile scores{work_.scores, panel};
    const StridedTile d_scores{work_.d_scores + begin * work_.score_stride + p * panel, work_.score_stride};
    multiply({rows, vectors, dims_.qk}, q, {work_.k_panels + panel_offset(p), panel}, scores);
    const auto& in = problem_.in;
    const float cap2 = cap_in_base_2(in.soft_cap);
    if (cap2 > 0.0f) cap_scores(rows, vectors, work_.scores, cap2);
    if (partial) {
      const QueryRows masked = queries.slice(begin, std::min(begin + rows, queries.count));
      mask_tile({mask, in.q_positions, in.keys(), problem_.spans.data()}, masked, keys,
                {work_.scores, panel, 1});
    }
    multiply({rows, vectors, dims_.v}, d_out, {work_.v_panels + v_panel_offset(p), panel}, d_scores);
    softmax_gradient(rows, vectors, work_.scores, d_scores, work_.lse2 + begin, work_.d + begin, cap2);
    accumulate({dims_.v, vectors, rows}, d_out, scores, nullptr,
               {work_.dv_panels + v_panel_offset(p), panel});
    accumulate({dims_.qk, vectors, rows}, q, d_scores, nullptr, {work_.dk_panels + panel_offset(p), panel});
    return {begin, begin + rows};
  }

  // dQ = dS·K over the keys of the tile, for runs of rows for which the same panels have scores.
  void multiply_keys(const RowRange* used, int rows) const {
    const auto uses = [&](int p, int row) { return used[p].begin <= row && row < used[p].end; };
    int next = 0;
    for (int row = 0; row < rows; row = next) {
      int first = 0, last = panels();
      while (first < last && !uses(first, row)) ++first;
      while (first < last && !uses(last - 1, row)) --last;
      next = rows;  // the run ends where the first panel comes or goes
      for (int p = 0; p < panels(); ++p) {
        for (const auto edge : {static_cast<int>(used[p].begin), static_cast<int>(used[p].end)}) {
          if (edge > row) next = std::min(next, edge);
        }
      }
      for (int p = first; p < last; ++p) {
        if (!uses(p, row)) zero_d_scores(p, row, next);
      }
      multiply_keys({row, next}, {first * panel, std::min<std::int64_t>(last * panel, keys_.size())});
    }
  }

  void zero_d_scores(int p, int row, int end) const {
    for (; row < end; ++row) std::fill_n(work_.d_scores + row * work_.score_stride + p * panel, panel, 0.0f);
  }

  void multiply_keys(RowRange rows, RowRange keys) const {
    const int vectors = round_up(dims_.qk, width) / width;
    const int strips = ceil_divide(vectors, block_vectors);
    for (int strip = 0; strip < strips; ++strip) {  // as even as they can be
      const int begin = vectors * strip / strips, end = vectors * (strip + 1) / strips;
      multiply({static_cast<int>(rows.size()), end - begin, static_cast<int>(keys.size())},
               {work_.d_scores + rows.begin * work_.score_stride + keys.begin, work_.score_stride},
               {work_.keys + keys.begin * work_.stride + begin * width, work_.stride},
               {work_.dq + rows.begin * work_.stride + begin * width, work_.stride});
    }
  }

  void finish() const {
    for (int p = 0; p < panels(); ++p) {
      const RowRange keys = panel_keys(p);
      const auto count = static_cast<int>(keys.size());
      add_panel(work_.dk_panels + panel_offset(p), count, dims_.qk, problem_.in.scale,
                &problem_.arrays.dk(batch_, kv_head_, keys.begin, 0), problem_.arrays.dk.stride(2));
      add_panel(work_.dv_panels + v_panel_offset(p), count, dims_.v, 1.0f,
                &problem_.arrays.dv(batch_, kv_head_, keys.begin, 0), problem_.arrays.dv.stride(2));
    }
  }

  const BackwardLaunch<T>& problem_;
  int batch_, kv_head_, tile_;
  RowRange keys_;
  HeadDims dims_;
  const BackwardWorkspace& work_;
  bool started_ = false;
};

}  // namespace

template <class T>
void backward(const HostExec& exec, const Operands<T, HostExec>& in,
              const BackwardArrays<T, HostExec>& arrays) {
  if (in.q.size() == 0 || in.k.size() == 0) return;
  const Region region("annulus::attention::host_simd::backward");
  const auto spans = key_spans(exec, in.q_positions, in.keys(), in.mask);
  BackwardLaunch<T> problem{in, arrays, spans.view(), {}};
  const std::size_t count = problem.semaphores() + 1;
  const PooledScratch<std::int32_t> semaphores(count);
  problem.dq_semaphores = semaphores.view();
  Kokkos::parallel_for("annulus::attention::host_simd::zero_semaphores",
                       Kokkos::RangePolicy<HostExec>(exec, 0, count),
                       [=, values = semaphores.view()](std::size_t i) { values(i) = 0; });

  const int sequences = problem.batch() * problem.kv_heads();
  const HeadDims dims = problem.dims();
  const TicketOrder order(sequences, problem.key_tiles(), exec.concurrency());
  using Policy = Kokkos::TeamPolicy<HostExec, Kokkos::Schedule<Kokkos::Dynamic>>;
  const std::size_t scratch = BackwardWorkspace(dims, nullptr).bytes + 64;
  Policy policy(exec, sequences * problem.key_tiles(), 1);
  policy.set_scratch_size(1, Kokkos::PerTeam(static_cast<int>(scratch))).set_chunk_size(1);
  Kokkos::parallel_for(
      "annulus::attention::host_simd::backward", policy, [=](const typename Policy::member_type& member) {
        // Tickets, not league ranks: a key tile may wait for earlier ones, so these must
        // have started. Under a causal mask the early keys have the most queries.
        const auto [sequence, tile] =
            order(Kokkos::atomic_fetch_add(&problem.dq_semaphores(problem.semaphores()), 1));
        auto* memory = static_cast<float*>(member.team_scratch(1).get_shmem_aligned(scratch - 64, 64));
        KeyTile<T>(problem, sequence / problem.kv_heads(), sequence % problem.kv_heads(), tile,
                   BackwardWorkspace(dims, memory))
            .run();
      });
}

#define ANNULUS_INSTANTIATE(T) \
  template void backward(const HostExec&, const Operands<T, HostExec>&, const BackwardArrays<T, HostExec>&);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::attention::host_simd
