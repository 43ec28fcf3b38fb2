// The kernels for Hopper alone, without Kokkos or the rest of the library: what a developer of them builds in
// a minute and runs on a GPU (docs/gpu.md).
//
//   hopper_kernels check CASES [SEED]
//     Random shapes, layouts, masks, types and options against double precision on the GPU; in the fixed
//     order also the same bits again with another number of multiprocessors. A third of the cases computes
//     its result a second time in the inputs' type, which must be the first one rounded. Exit status 1 if any
//     is outside its tolerance.
//   hopper_kernels time HEAD_DIM ROWS HEADS KV_HEADS MASK [PAUSE_SECONDS]
//     TFLOP/s in bf16: forward (merging), backward in any order and in the fixed order, into running
//     gradients. Medians of nine calls that each start after a pause (0.4 s by default; 0: one call after the
//     other, the sustained rate). MASK: full, causal, window:LEFT, dilation:D, blocks:SIZE:PERCENT (random
//     blocks and the diagonal), lists:SIZE:PERCENT (the same, other blocks for each head),
//     shared:SIZE:PERCENT (other blocks for each kv head) or slashes:COUNT (causal, blocks of 64 at so many
//     random block distances for each kv head). FLOPs: 4 · head_dim for each pair that the mask
//     allows, 2.5 times that backward.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <annulus/base/float16.hpp>

#include "attention/hopper/launch.hpp"

namespace {

using namespace annulus;
using namespace annulus::attention;
namespace hopper = annulus::attention::hopper;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class E>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<std::size_t>(count * sizeof(E), 256)), "allocate");
  }
  explicit DeviceArray(const std::vector<E>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(E), cudaMemcpyHostToDevice), "copy");
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  E* data() const { return data_; }
  std::size_t count() const { return count_; }
  void fill_bytes(int byte) const { check(cudaMemset(data_, byte, count_ * sizeof(E)), "fill"); }
  std::vector<E> host() const {
    std::vector<E> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(E), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  E* data_ = nullptr;
  std::size_t count_;
};

__device__ float normal(std::size_t i, unsigned seed) {
  unsigned long long x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  const float u = (static_cast<unsigned>(x) + 0.5f) * 2.3283064e-10f,
              v = static_cast<float>(x >> 32) * 2.3283064e-10f;
  return sqrtf(-2.0f * logf(fminf(u, 0.9999999f))) * cosf(6.2831853f * v);
}

template <class E>
__global__ void fill_normal_kernel(E* data, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    data[i] = static_cast<E>(normal(i, seed));
}
template <class E>
void fill_normal(const DeviceArray<E>& array, unsigned seed) {
  fill_normal_kernel<<<1024, 256>>>(array.data(), array.count(), seed);
  check(cudaGetLastError(), "fill");
}

template <class E>
gpu::Rows<E> dense(E* data, int heads, std::int64_t rows, int width) {
  return {data, heads * rows * width, rows * width, width};
}

/// A mask, with its arrays on the device.
struct MaskCase {
  std::string text;
  MaskRule rule;  // pointers of the host
  std::vector<std::int64_t> documents, block_rows, block_columns;

  MaskRule on_host() const {
    MaskRule r = rule;
    if (!documents.empty()) {
      r.document_starts = documents.data();
      r.documents = static_cast<std::int64_t>(documents.size()) - 1;
    }
    if (!block_rows.empty()) {
      r.block_row_starts = block_rows.data();
      r.block_columns = block_columns.data();
    }
    return r;
  }
  /// `lists`: 1 for all heads, or so many of `heads_of_list` heads each; every fifth of these has no block at
  /// all.
  void list_blocks(std::int64_t size, int percent, std::mt19937& random, std::int64_t lists = 1,
                   std::int64_t heads_of_list = 0) {
    rule.block_size = size;
    rule.block_lists = lists;
    rule.heads_of_list = heads_of_list;
    const auto listed = [&] { return static_cast<std::int64_t>(block_columns.size()); };
    for (std::int64_t list = 0; list < lists; ++list) {
      for (std::int64_t r = 0; r < rule.block_rows(); ++r) {
        block_rows.push_back(listed());
        for (std::int64_t c = 0; c < rule.block_rows() && list % 5 != 4; ++c)
          if (c == r || static_cast<int>(random() % 100) < percent) block_columns.push_back(c);
      }
      block_rows.push_back(listed());
    }
  }
  /// Vertical-slash sparsity without its verticals: blocks of 64 at `count` random block distances, 0 among
  /// them, others for each list.
  void list_slashes(std::int64_t count, std::mt19937& random, std::int64_t lists,
                    std::int64_t heads_of_list) {
    rule.block_size = 64;
    rule.block_lists = lists;
    rule.heads_of_list = heads_of_list;
    const std::int64_t blocks = rule.block_rows();
    for (std::int64_t list = 0; list < lists; ++list) {
      std::vector<bool> distances(static_cast<std::size_t>(blocks), false);
      distances[0] = true;
      for (std::int64_t chosen = 1; chosen < std::min(count, blocks);) {
        const std::size_t distance = random() % distances.size();
        if (!distances[distance]) ++chosen;
        distances[distance] = true;
      }
      for (std::int64_t r = 0; r < blocks; ++r) {
        block_rows.push_back(static_cast<std::int64_t>(block_columns.size()));
        for (std::int64_t c = 0; c <= r; ++c)
          if (distances[static_cast<std::size_t>(r - c)]) block_columns.push_back(c);
      }
      block_rows.push_back(static_cast<std::int64_t>(block_columns.size()));
    }
  }
};

/// MaskCase::rule with its arrays in device memory.
class MaskOnDevice {
 public:
  explicit MaskOnDevice(const MaskCase& mask)
      : rule_(mask.on_host()),
        documents_(mask.documents),
        rows_(mask.block_rows),
        columns_(mask.block_columns) {
    if (rule_.document_starts != nullptr) rule_.document_starts = documents_.data();
    if (rule_.block_row_starts != nullptr) {
      rule_.block_row_starts = rows_.data();
      rule_.block_columns = columns_.data();
    }
  }
  const MaskRule& rule() const { return rule_; }

 private:
  MaskRule rule_;
  DeviceArray<std::int64_t> documents_, rows_, columns_;
};

// --- Double precision
// ---------------------------------------------------------------------------------------------------

template <class T>
__device__ double dot(const T* a, const T* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[i]);
  return sum;
}

/// A thread for each row: out and lse.
template <class T>
__global__ void reference_forward(gpu::Input<T> in, double* out, double* lse) {
  const std::int64_t rows = in.q_positions.count, at = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (at >= rows * in.heads * in.batch) return;
  const std::int64_t row = at % rows;
  const int head = static_cast<int>(at / rows % in.heads), batch = static_cast<int>(at / rows / in.heads);
  const int kv_head = head / (in.heads / in.kv_heads), d = in.head_dim;
  const T* const q = in.q.at(batch, head, row);
  const MaskRule mask = in.mask.of_head(batch * in.heads + head);
  double highest = -INFINITY, sum = 0;
  for (int c = 0; c < d; ++c) out[at * d + c] = 0;
  for (std::int64_t j = 0; j < in.kv_positions.count; ++j) {
    if (!mask.allows(in.q_positions(row), in.kv_positions(j))) continue;
    const double score = in.scale * dot(q, in.k.at(batch, kv_head, j), d), before = highest;
    highest = fmax(highest, score);
    const double shrink = exp(before - highest), p = exp(score - highest);
    sum = sum * shrink + p;
    const T* const v = in.v.at(batch, kv_head, j);
    for (int c = 0; c < d; ++c) out[at * d + c] = out[at * d + c] * shrink + p * static_cast<float>(v[c]);
  }
  lse[at] = sum > 0 ? highest + log(sum) : -INFINITY;
  for (int c = 0; c < d && sum > 0; ++c) out[at * d + c] /= sum;
}

/// A thread for each row of queries or of keys.
template <class T, bool of_queries>
__global__ void reference_backward(gpu::BackwardProblem<T> p, double* first, double* second) {
  const gpu::Input<T>& in = p.in;
  const PositionMap own = of_queries ? in.q_positions : in.kv_positions;
  const int own_heads = of_queries ? in.heads : in.kv_heads, d = in.head_dim, group = in.heads / in.kv_heads;
  const std::int64_t rows = own.count, at = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (at >= rows * own_heads * in.batch) return;
  const std::int64_t row = at % rows;
  const int own_head = static_cast<int>(at / rows % own_heads),
            batch = static_cast<int>(at / rows / own_heads);
  for (int c = 0; c < d; ++c) {
    first[at * d + c] = 0;
    if (!of_queries) second[at * d + c] = 0;
  }
  const auto pair = [&](int head, std::int64_t i, std::int64_t j) {
    const double lse = *p.lse.at(batch, head, i);
    const MaskRule mask = in.mask.of_head(batch * in.heads + head);
    if (lse == -INFINITY || !mask.allows(in.q_positions(i), in.kv_positions(j))) return;
    const int kv_head = head / group;
    const T *const q = in.q.at(batch, head, i), *const k = in.k.at(batch, kv_head, j),
                   *const d_out = p.d_out.at(batch, head, i);
    const double probability = exp(in.scale * dot(q, k, d) - lse);
    const double d_score =
        in.scale * probability * (dot(d_out, in.v.at(batch, kv_head, j), d) - *p.d.at(batch, head, i));
    for (int c = 0; c < d; ++c) {
      first[at * d + c] += d_score * static_cast<float>((of_queries ? k : q)[c]);
      if (!of_queries) second[at * d + c] += probability * static_cast<float>(d_out[c]);
    }
  };
  if (of_queries) {
    for (std::int64_t j = 0; j < in.kv_positions.count; ++j) pair(own_head, row, j);
  } else {
    for (int head = own_head * group; head < (own_head + 1) * group; ++head)
      for (std::int64_t i = 0; i < in.q_positions.count; ++i) pair(head, i, row);
  }
}

// --- Problems
// -----------------------------------------------------------------------------------------------------------

/// Inputs and results of one block of attention.
template <class T, int head_dim>
class Case {
 public:
  Case(const MaskCase& mask, const PositionMap& q_map, const PositionMap& kv_map, int batch, int heads,
       int kv_heads, unsigned seed)
      : mask_(mask),
        q_rows_(q_map.count),
        kv_rows_(kv_map.count),
        q(std::size_t(batch) * heads * q_rows_ * head_dim),
        d_out(q.count()),
        k(std::size_t(batch) * kv_heads * kv_rows_ * head_dim),
        v(k.count()),
        out(q.count()),
        dq(q.count()),
        lse(std::size_t(batch) * heads * q_rows_),
        d(lse.count()),
        dk(k.count()),
        dv(k.count()) {
    fill_normal(q, seed + 1);
    fill_normal(k, seed + 2);
    fill_normal(v, seed + 3);
    fill_normal(d_out, seed + 4);
    in_ = {dense<const T>(q.data(), heads, q_rows_, head_dim),
           dense<const T>(k.data(), kv_heads, kv_rows_, head_dim),
           dense<const T>(v.data(), kv_heads, kv_rows_, head_dim),
           q_map,
           kv_map,
           mask_.rule(),
           1.0f / std::sqrt(static_cast<float>(head_dim)),
           batch,
           heads,
           kv_heads,
           head_dim};
    classes_ = hopper::residue_classes(in_.mask, q_map, kv_map);
  }

  bool applies() const { return classes_ && !(classes_->count > 1 && in_.mask.block_row_starts != nullptr); }
  const gpu::Input<T>& input() const { return in_; }
  gpu::BackwardProblem<T> backward_problem() const {
    return {in_,
            dense<const T>(d_out.data(), in_.heads, q_rows_, head_dim),
            dense<const float>(lse.data(), in_.heads, q_rows_, 1),
            dense<const float>(d.data(), in_.heads, q_rows_, 1),
            dense(dq.data(), in_.heads, q_rows_, head_dim),
            dense(dk.data(), in_.kv_heads, kv_rows_, head_dim),
            dense(dv.data(), in_.kv_heads, kv_rows_, head_dim)};
  }

  /// (batch, rows, heads, head_dim), as models have it.
  gpu::Rows<T> joined(T* data) const {
    const std::int64_t width = std::int64_t{in_.heads} * head_dim;
    return {data, q_rows_ * width, head_dim, width};
  }
  void forward(const hopper::LaunchOptions& options, const gpu::Rows<T>& finished = {}) {
    const gpu::ForwardProblem<T> problem{in_, dense(out.data(), in_.heads, q_rows_, head_dim),
                                         dense(lse.data(), in_.heads, q_rows_, 1), finished};
    check(hopper::launch_forward<head_dim, T>(
              problem, *classes_, options,
              workspace(hopper::forward_workspace<head_dim>(in_.mask, in_.q_positions, in_.kv_positions,
                                                            hopper::ListedKeys::of(in_), *classes_,
                                                            hopper::fine_lists(in_))),
              nullptr),
          "start the forward pass");
  }
  /// Whether joined(`finished`) is `result`, (batch, heads, rows, head_dim), rounded.
  bool is_rounded(const std::vector<T>& finished, const std::vector<float>& result) const {
    const gpu::Rows<const float> from = dense(result.data(), in_.heads, q_rows_, head_dim);
    for (int batch = 0; batch < in_.batch; ++batch)
      for (int head = 0; head < in_.heads; ++head)
        for (std::int64_t row = 0; row < q_rows_; ++row)
          for (int i = 0; i < head_dim; ++i) {
            const std::int64_t at = ((batch * q_rows_ + row) * in_.heads + head) * head_dim + i;
            if (finished[static_cast<std::size_t>(at)].bits != T(from.at(batch, head, row)[i]).bits)
              return false;
          }
    return true;
  }
  void backward(const hopper::LaunchOptions& options) {
    check(hopper::launch_backward<head_dim, T>(
              backward_problem(), *classes_, options,
              workspace(hopper::backward_workspace<head_dim>(
                  in_.mask, in_.q_positions, in_.kv_positions, hopper::ListedKeys::of(in_), *classes_,
                  in_.batch * in_.heads, options, hopper::fine_lists(in_))),
              nullptr),
          "start the backward pass");
  }

 private:
  MaskOnDevice mask_;
  std::int64_t q_rows_, kv_rows_;
  gpu::Input<T> in_;
  std::optional<hopper::ResidueClasses> classes_;
  std::unique_ptr<DeviceArray<unsigned char>> workspace_;

  void* workspace(std::size_t bytes) {
    if (workspace_ == nullptr || workspace_->count() < bytes)
      workspace_ = std::make_unique<DeviceArray<unsigned char>>(bytes);
    return workspace_->data();
  }

 public:
  DeviceArray<T> q, d_out, k, v;
  DeviceArray<float> out, dq, lse, d, dk, dv;
};

// --- check
// --------------------------------------------------------------------------------------------------------------

/// |a − b| / |b| in the 2-norm; where b is all but zero, of numbers of size `floor`.
double relative_error(const std::vector<float>& a, const std::vector<double>& b, double floor) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return a.empty() ? 0.0 : std::sqrt(difference / std::max(norm, floor * floor * double(a.size())));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

PositionMap shard_of(std::int64_t tokens, int layout, int ranks, int rank) {
  const std::int64_t chunk = tokens / (2 * ranks);
  if (layout == 1) return {rank * chunk, (2 * ranks - 1 - 2 * rank) * chunk, 1, chunk, 0, 2 * chunk};
  if (layout == 2) return {rank, ranks, 1, 1, 0, (tokens - rank + ranks - 1) / ranks};
  return {rank * (tokens / ranks), 0, 1, tokens / ranks, 0, tokens / ranks};
}

template <class T, int head_dim>
bool check_case(std::mt19937& random) {
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int batch = 1 + draw(2), kv_heads = 1 + draw(3), group = std::max(draw(5), 1);
  MaskCase mask;
  mask.rule.tokens = 4 + draw(900);
  const std::int64_t tokens = mask.rule.tokens;
  const int kind = draw(10);
  if (kind >= 2) mask.rule.right = 0;
  if (kind == 3 || kind == 4) mask.rule.left = draw(static_cast<int>(tokens));
  if (kind == 4) mask.rule.right = draw(static_cast<int>(tokens));
  if (kind == 5) mask.rule.dilation = 2 + draw(4);
  if (kind == 6) mask.documents = {0, 1 + draw(static_cast<int>(tokens) / 2), tokens};
  if (kind == 7 || kind == 1) mask.list_blocks(7 + draw(250), 30, random);
  if (kind >= 8) {
    int heads_of_list = 1 + draw(group);
    while (group % heads_of_list != 0) --heads_of_list;
    mask.list_blocks(draw(2) == 0 ? 64 : 7 + draw(250), 30, random,
                     std::int64_t{batch} * kv_heads * group / heads_of_list, heads_of_list);
  }
  const int layout = draw(3), ranks = 1 + draw(2);
  const PositionMap q_map = shard_of(tokens, layout, ranks, draw(ranks)),
                    kv_map = shard_of(tokens, layout, ranks, draw(ranks));
  if (q_map.count <= 0 || kv_map.count <= 0) return true;
  const hopper::LaunchOptions options{draw(2) * draw(130), draw(4) != 0, draw(2) != 0, draw(2) != 0,
                                      draw(2) != 0};
  Case<T, head_dim> c(mask, q_map, kv_map, batch, kv_heads * group, kv_heads, random());
  if (!c.applies()) return true;

  const auto& in = c.input();
  const auto blocks = [](std::size_t threads) {
    return static_cast<unsigned>(ceil_divide(threads, std::size_t{64}));
  };
  DeviceArray<double> out(c.out.count()), lse(c.lse.count()), dq(c.dq.count()), dk(c.dk.count()),
      dv(c.dv.count());
  reference_forward<T><<<blocks(lse.count()), 64>>>(in, out.data(), lse.data());
  check(cudaGetLastError(), "reference");
  // What holds nothing yet is NaN, so that whoever reads it is found out.
  const auto start_forward = [&] {
    c.out.fill_bytes(options.fresh_out ? 0xff : 0);
    if (options.fresh_out) {
      c.lse.fill_bytes(0xff);
    } else {
      check(cudaMemcpy(c.lse.data(), std::vector<float>(c.lse.count(), -INFINITY).data(), c.lse.count() * 4,
                       cudaMemcpyHostToDevice),
            "copy");
    }
  };
  start_forward();
  c.forward(options);
  const std::vector<float> out_found = c.out.host(), lse_found = c.lse.host();
  const std::vector<double> out_expected = out.host(), lse_expected = lse.host();
  {  // D of the exact output
    std::vector<float> d(c.d.count());
    const auto d_out = c.d_out.host();
    for (std::size_t i = 0; i < d.size(); ++i) {
      double sum = 0;
      for (int column = 0; column < head_dim; ++column)
        sum += out_expected[i * head_dim + column] * static_cast<float>(d_out[i * head_dim + column]);
      d[i] = static_cast<float>(sum);
    }
    check(cudaMemcpy(c.d.data(), d.data(), d.size() * 4, cudaMemcpyHostToDevice), "copy");
  }
  reference_backward<T, true><<<blocks(lse.count()), 64>>>(c.backward_problem(), dq.data(), nullptr);
  reference_backward<T, false>
      <<<blocks(dk.count() / head_dim), 64>>>(c.backward_problem(), dk.data(), dv.data());
  check(cudaGetLastError(), "reference");
  const auto run_backward = [&](int free_sms) {
    c.dq.fill_bytes(options.fresh_dq ? 0xff : 0);
    c.dk.fill_bytes(options.fresh_dkv ? 0xff : 0);
    c.dv.fill_bytes(options.fresh_dkv ? 0xff : 0);
    hopper::LaunchOptions now = options;
    now.free_sms = free_sms;
    c.backward(now);
    return std::array<std::vector<float>, 3>{c.dq.host(), c.dk.host(), c.dv.host()};
  };
  const auto found = run_backward(options.free_sms);
  bool repeats = true;
  if (options.deterministic) {
    const auto again = run_backward(37);
    for (int i = 0; i < 3; ++i) repeats = repeats && same_bits(found[i], again[i]);
  }
  bool finishes = true;
  const bool finished_too = draw(3) == 0;
  if (finished_too) {  // from any running result
    const unsigned seed = random();
    const auto start = [&] {
      if (options.fresh_out) return start_forward();
      fill_normal(c.out, seed);
      fill_normal(c.lse, seed + 1);
    };
    start();
    c.forward(options);
    const std::vector<float> out_then = c.out.host(), lse_then = c.lse.host();
    start();
    const DeviceArray<T> joined(c.out.count());
    joined.fill_bytes(0xff);
    c.forward(options, c.joined(joined.data()));
    finishes = same_bits(c.lse.host(), lse_then) && c.is_rounded(joined.host(), out_then);
  }
  const double errors[] = {
      relative_error(out_found, out_expected, 1e-2), relative_error(lse_found, lse_expected, 1e-2),
      relative_error(found[0], dq.host(), 1e-2), relative_error(found[1], dk.host(), 1e-2),
      relative_error(found[2], dv.host(), 1e-2)};
  const double tolerance = std::is_same_v<T, bfloat16> ? 5e-3 : 7e-4;
  bool right = repeats && finishes && errors[1] < 1e-6;
  for (const double error : errors) right = right && error < tolerance;
  std::printf(
      "%s %s d%d batch %d heads %d/%d tokens %lld mask %d layout %d/%d rows %lld×%lld%s%s%s%s%s: out %.1e "
      "lse %.1e dq %.1e dk %.1e dv %.1e%s%s\n",
      right ? "right" : "WRONG", std::is_same_v<T, bfloat16> ? "bf16" : "f16", head_dim, batch,
      kv_heads * group, kv_heads, static_cast<long long>(tokens), kind, layout, ranks,
      static_cast<long long>(q_map.count), static_cast<long long>(kv_map.count),
      options.deterministic ? "" : " any-order", options.fresh_out ? " fresh-out" : "",
      options.fresh_dq ? " fresh-dq" : "", options.fresh_dkv ? " fresh-dkv" : "",
      finished_too ? " finished" : "", errors[0], errors[1], errors[2], errors[3], errors[4],
      repeats ? "" : " OTHER BITS AGAIN", finishes ? "" : " FINISHED OTHERWISE");
  std::fflush(stdout);
  return right;
}

template <class T>
bool check_case_of(int head_dim, std::mt19937& random) {
  return head_dim == 64    ? check_case<T, 64>(random)
         : head_dim == 96  ? check_case<T, 96>(random)
         : head_dim == 128 ? check_case<T, 128>(random)
                           : check_case<T, 256>(random);
}

int check_cases(int cases, unsigned seed) {
  std::mt19937 random(seed);
  int wrong = 0;
  for (int i = 0; i < cases; ++i) {
    const int head_dim = i % 4 == 3 ? 256 : 64 + i % 4 * 32;
    wrong += !(random() % 4 != 0 ? check_case_of<bfloat16>(head_dim, random)
                                 : check_case_of<float16>(head_dim, random));
  }
  std::printf("%d of %d cases wrong (seed %u)\n", wrong, cases, seed);
  return wrong > 0 ? 1 : 0;
}

// --- time
// ---------------------------------------------------------------------------------------------------------------

template <class Call>
double seconds_of(double pause, const Call& call) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "make an event");
  check(cudaEventCreate(&end), "make an event");
  std::vector<float> times;
  for (int i = 0; i < 11; ++i) {
    if (pause > 0) usleep(static_cast<unsigned>(pause * 1e6));
    check(cudaEventRecord(begin), "record");
    call();
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "run");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "time");
    if (i >= 2) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

/// Pairs of a query and a key that a mask with one block list, or none, allows a head.
double pairs_of(const MaskRule& rule) {
  double pairs = 0;
  for (std::int64_t i = 0; i < rule.tokens; ++i) {
    const KeyRange keys = rule.keys(i);
    if (rule.block_row_starts == nullptr) {
      pairs += static_cast<double>((keys.end - keys.begin + keys.stride - 1) / keys.stride);
      continue;
    }
    for (std::int64_t b = rule.block_row_starts[i / rule.block_size];
         b < rule.block_row_starts[i / rule.block_size + 1]; ++b)
      pairs += static_cast<double>(
          std::max<std::int64_t>(0, std::min(keys.end, (rule.block_columns[b] + 1) * rule.block_size) -
                                        std::max(keys.begin, rule.block_columns[b] * rule.block_size)));
  }
  return pairs;
}

template <int head_dim>
void time_case(std::int64_t rows, int heads, int kv_heads, const MaskCase& mask, double pause) {
  double pairs = 0;  // of all heads
  const std::int64_t lists = mask.rule.block_lists;
  for (std::int64_t list = 0; list < lists; ++list)
    pairs += pairs_of(mask.on_host().of_list(list)) * static_cast<double>(heads / lists);
  const PositionMap all{0, 0, 1, rows, 0, rows};
  Case<bfloat16, head_dim> c(mask, all, all, 1, heads, kv_heads, 1);
  for (const DeviceArray<float>* zero : {&c.out, &c.lse, &c.d, &c.dq, &c.dk, &c.dv}) zero->fill_bytes(0);
  c.forward({.fresh_out = true});
  const double flops = 4.0 * head_dim * pairs * 1e-12;
  const double forward = flops / seconds_of(pause, [&] { c.forward({}); });
  c.forward({.fresh_out = true});
  const double any = 2.5 * flops / seconds_of(pause, [&] { c.backward({.deterministic = false}); });
  const double fixed = 2.5 * flops / seconds_of(pause, [&] { c.backward({.deterministic = true}); });
  std::printf(
      "d%d %lld rows %d/%d heads %s: forward %.0f, backward any order %.0f, fixed order %.0f TFLOP/s\n",
      head_dim, static_cast<long long>(rows), heads, kv_heads, mask.text.c_str(), forward, any, fixed);
}

MaskCase parse_mask(const std::string& text, std::int64_t tokens, int heads, int kv_heads) {
  MaskCase mask;
  mask.text = text;
  mask.rule.tokens = tokens;
  if (text == "full") return mask;
  long long a = 0;
  int b = 0;
  if (std::sscanf(text.c_str(), "blocks:%lld:%d", &a, &b) == 2) {
    std::mt19937 random(1);
    mask.list_blocks(a, b, random);
    return mask;
  }
  if (std::sscanf(text.c_str(), "lists:%lld:%d", &a, &b) == 2) {
    std::mt19937 random(1);
    mask.list_blocks(a, b, random, heads, 1);
    return mask;
  }
  if (std::sscanf(text.c_str(), "shared:%lld:%d", &a, &b) == 2) {
    std::mt19937 random(1);
    mask.list_blocks(a, b, random, kv_heads, heads / kv_heads);
    return mask;
  }
  mask.rule.right = 0;
  if (std::sscanf(text.c_str(), "slashes:%lld", &a) == 1) {
    std::mt19937 random(1);
    mask.list_slashes(a, random, kv_heads, heads / kv_heads);
  } else if (std::sscanf(text.c_str(), "window:%lld", &a) == 1) {
    mask.rule.left = a;
  } else if (std::sscanf(text.c_str(), "dilation:%lld", &a) == 1) {
    mask.rule.dilation = a;
  } else if (text != "causal") {
    std::fprintf(stderr,
                 "unknown mask '%s': full, causal, window:LEFT, dilation:D, blocks:SIZE:PERCENT, "
                 "lists:SIZE:PERCENT, shared:SIZE:PERCENT or slashes:COUNT\n",
                 text.c_str());
    std::exit(2);
  }
  return mask;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string command = count > 1 ? arguments[1] : "";
  const auto number = [&](int i, double otherwise) {
    return i < count ? std::atof(arguments[i]) : otherwise;
  };
  if (command == "check" && count > 2)
    return check_cases(static_cast<int>(number(2, 0)), static_cast<unsigned>(number(3, 1)));
  if (command == "time" && count > 6) {
    const int head_dim = static_cast<int>(number(2, 0)), heads = static_cast<int>(number(4, 0)),
              kv_heads = static_cast<int>(number(5, 0));
    const auto rows = static_cast<std::int64_t>(number(3, 0));
    const MaskCase mask = parse_mask(arguments[6], rows, heads, kv_heads);
    const double pause = number(7, 0.4);
    if (head_dim == 64) return time_case<64>(rows, heads, kv_heads, mask, pause), 0;
    if (head_dim == 96) return time_case<96>(rows, heads, kv_heads, mask, pause), 0;
    if (head_dim == 128) return time_case<128>(rows, heads, kv_heads, mask, pause), 0;
    if (head_dim == 256) return time_case<256>(rows, heads, kv_heads, mask, pause), 0;
  }
  std::fprintf(stderr,
               "usage: hopper_kernels check CASES [SEED]\n"
               "       hopper_kernels time HEAD_DIM ROWS HEADS KV_HEADS MASK [PAUSE_SECONDS]\n");
  return 2;
}
