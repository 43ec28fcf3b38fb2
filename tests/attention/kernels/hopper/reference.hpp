#pragma once

#include "attention/kernels/gpu/problem.hpp"

/// Attention in double precision on the device, one thread a row.
namespace annulus::hopper_kernels {

using namespace annulus::attention;

template <class T>
__device__ double dot(const T* a, const T* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[i]);
  return sum;
}

/// A score, and its derivative by scale · q·k.
struct Score {
  double value, derivative;
};
template <class T>
__device__ Score score_of(const gpu::Input<T>& in, double product) {
  if (in.soft_cap == 0.0f) return {in.scale * product, 1.0};
  const double t = tanh(in.scale * product / in.soft_cap);
  return {in.soft_cap * t, 1.0 - t * t};
}

/// Whether the query of row i sees the key of row j of a kv head.
template <class T>
__device__ bool sees(const gpu::Input<T>& in, const MaskRule& mask, std::int64_t i, int batch, int kv_head,
                     std::int64_t j) {
  const std::int64_t list = (std::int64_t{batch} * in.kv_heads + kv_head) * in.kv_positions.count;
  const std::int64_t key = in.kv_listed == nullptr ? in.kv_positions(j) : in.kv_listed[list + j];
  return key < mask.tokens && mask.allows(in.q_positions(i), key);
}

/// A thread for each row: out and lse. `sinks`: (heads) or null.
template <class T>
__global__ void reference_forward(gpu::Input<T> in, const T* sinks, double* out, double* lse) {
  const std::int64_t rows = in.q_positions.count, at = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (at >= rows * in.heads * in.batch) return;
  const std::int64_t row = at % rows;
  const int head = static_cast<int>(at / rows % in.heads), batch = static_cast<int>(at / rows / in.heads);
  const int kv_head = head / (in.heads / in.kv_heads), v_dim = in.v_head_dim;
  const T* const q = in.q.at(batch, head, row);
  const MaskRule mask = in.mask.of_head(batch * in.heads + head);
  double highest = sinks == nullptr ? -INFINITY : static_cast<float>(sinks[head]);
  double sum = sinks == nullptr ? 0 : 1;
  for (int c = 0; c < v_dim; ++c) out[at * v_dim + c] = 0;
  for (std::int64_t j = 0; j < in.kv_positions.count; ++j) {
    if (!sees(in, mask, row, batch, kv_head, j)) continue;
    const double score = score_of(in, dot(q, in.k.at(batch, kv_head, j), in.head_dim)).value,
                 before = highest;
    highest = fmax(highest, score);
    const double shrink = exp(before - highest), p = exp(score - highest);
    sum = sum * shrink + p;
    const T* const v = in.v.at(batch, kv_head, j);
    for (int c = 0; c < v_dim; ++c)
      out[at * v_dim + c] = out[at * v_dim + c] * shrink + p * static_cast<float>(v[c]);
  }
  lse[at] = sum > 0 ? highest + log(sum) : -INFINITY;
  for (int c = 0; c < v_dim && sum > 0; ++c) out[at * v_dim + c] /= sum;
}

/// A thread for each row of queries or of keys.
template <class T, bool of_queries>
__global__ void reference_backward(gpu::BackwardProblem<T> p, double* first, double* second) {
  const gpu::Input<T>& in = p.in;
  const PositionMap own = of_queries ? in.q_positions : in.kv_positions;
  const int own_heads = of_queries ? in.heads : in.kv_heads, d = in.head_dim, v_dim = in.v_head_dim,
            group = in.heads / in.kv_heads;
  const std::int64_t rows = own.count, at = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (at >= rows * own_heads * in.batch) return;
  const std::int64_t row = at % rows;
  const int own_head = static_cast<int>(at / rows % own_heads),
            batch = static_cast<int>(at / rows / own_heads);
  for (int c = 0; c < d; ++c) first[at * d + c] = 0;
  for (int c = 0; c < v_dim && !of_queries; ++c) second[at * v_dim + c] = 0;
  const auto pair = [&](int head, std::int64_t i, std::int64_t j) {
    const double lse = *p.lse.at(batch, head, i);
    const MaskRule mask = in.mask.of_head(batch * in.heads + head);
    const int kv_head = head / group;
    if (lse == -INFINITY || !sees(in, mask, i, batch, kv_head, j)) return;
    const T *const q = in.q.at(batch, head, i), *const k = in.k.at(batch, kv_head, j),
                   *const d_out = p.d_out.at(batch, head, i);
    const Score score = score_of(in, dot(q, k, d));
    const double probability = exp(score.value - lse);
    const double d_score = in.scale * score.derivative * probability *
                           (dot(d_out, in.v.at(batch, kv_head, j), v_dim) - *p.d.at(batch, head, i));
    for (int c = 0; c < d; ++c) first[at * d + c] += d_score * static_cast<float>((of_queries ? k : q)[c]);
    for (int c = 0; c < v_dim && !of_queries; ++c)
      second[at * v_dim + c] += probability * static_cast<float>(d_out[c]);
  };
  if (of_queries) {
    for (std::int64_t j = 0; j < in.kv_positions.count; ++j) pair(own_head, row, j);
  } else {
    for (int head = own_head * group; head < (own_head + 1) * group; ++head)
      for (std::int64_t i = 0; i < in.q_positions.count; ++i) pair(head, i, row);
  }
}

}  // namespace annulus::hopper_kernels
