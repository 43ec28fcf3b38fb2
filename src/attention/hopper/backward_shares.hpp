#pragma once

#include "attention/gpu/problem.hpp"

/// Listed keys are few, and many queries see each of them: a thread block that went through the queries of
/// all heads of a group would run alone at the end. Each head of queries therefore has a work of its own,
/// with sums of dK and dV of its own, which are then added in the order of heads.
namespace annulus::attention::hopper {

/// Sums of dK and dV of each head of queries, one tensor behind the other: (batch, heads, kv rows, head_dim).
struct GradientShares {
  float* data;
  int batch, heads;
  std::int64_t rows;
  int head_dim;

  std::int64_t count() const { return std::int64_t{batch} * heads * rows * head_dim; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * 2 * sizeof(float); }
  gpu::Rows<float> of_dk() const { return {data, heads * rows * head_dim, rows * head_dim, head_dim}; }
  gpu::Rows<float> of_dv() const {
    gpu::Rows<float> of = of_dk();
    of.data += count();
    return of;
  }
};

/// Adds the shares of a group, or writes their sum. Four columns for each thread. `to`: dK or dV.
template <int head_dim>
__global__ void add_shares(gpu::Rows<const float> shares, gpu::Rows<float> to, int kv_heads, int group,
                           std::int64_t rows, std::int64_t threads, bool fresh) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread >= threads) return;
  constexpr int fours = head_dim / 4;
  const int column = static_cast<int>(thread % fours) * 4;
  const std::int64_t row = thread / fours % rows;
  const int kv_head = static_cast<int>(thread / fours / rows % kv_heads),
            batch = static_cast<int>(thread / fours / rows / kv_heads);
  float4* const sum_at = reinterpret_cast<float4*>(to.at(batch, kv_head, row) + column);
  float4 sum = fresh ? make_float4(0, 0, 0, 0) : *sum_at;
  for (int i = 0; i < group; ++i) {
    const float4 share =
        *reinterpret_cast<const float4*>(shares.at(batch, kv_head * group + i, row) + column);
    sum = make_float4(sum.x + share.x, sum.y + share.y, sum.z + share.z, sum.w + share.w);
  }
  *sum_at = sum;
}

}  // namespace annulus::attention::hopper
