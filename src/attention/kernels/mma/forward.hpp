#pragma once

#include "attention/kernels/merge_row.hpp"
#include "attention/kernels/mma/mask_tiles.hpp"
#include "attention/kernels/mma/products.hpp"

namespace annulus::attention::mma {

/// A block owns 128 queries of a head, a warp 32 of them: each fragment of K and V that a warp reads from
/// shared memory serves two products.
struct ForwardShape {
  static constexpr int warps = 4, threads = 32 * warps, blocks = 2, own_rows = 16 * blocks * warps;
};

template <int head_dim>
struct ForwardTiles {
  Tile<ForwardShape::own_rows, head_dim> q;
  Tile<inner_rows, head_dim> k[2], v[2];
  static constexpr int bytes = decltype(q)::bytes + 4 * Tile<inner_rows, head_dim>::bytes;

  __device__ explicit ForwardTiles(std::uint32_t address) : q{address} {
    for (int stage = 0; stage < 2; ++stage) {
      k[stage].address = address + decltype(q)::bytes + stage * Tile<inner_rows, head_dim>::bytes;
      v[stage].address = k[stage].address + 2 * Tile<inner_rows, head_dim>::bytes;
    }
  }

  /// Starts to copy the keys and values of a tile.
  template <class T>
  __device__ __forceinline__ void load_keys(const Input<T>& in, int batch, int kv_head, const WalkTile& tile,
                                            int columns, int stage) const {
    k[stage].template load<ForwardShape::threads>(in.k.at(batch, kv_head, tile.first), in.k.row_stride,
                                                  tile.rows, columns);
    v[stage].template load<ForwardShape::threads>(in.v.at(batch, kv_head, tile.first), in.v.row_stride,
                                                  tile.rows, columns);
  }
};

/// The online softmax of a warp's rows (FlashAttention-2, Algorithm 1): their running maxima and sums, the
/// sums over the columns of one lane only until they are finished.
template <int blocks>
struct WarpSoftmax {
  float maximum[blocks][2], sum[blocks][2];

  __device__ WarpSoftmax() {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      maximum[m][0] = maximum[m][1] = -std::numeric_limits<float>::infinity();
      sum[m][0] = sum[m][1] = 0.0f;
    }
  }

  /// scores = exp(scale · scores − maximum), and what was summed so far shrinks to the new maximum.
  /// `factor` is scale · log2(e) > 0.
  template <int columns, int out_columns>
  __device__ __forceinline__ void add(Accumulator<blocks, columns>& scores,
                                      Accumulator<blocks, out_columns>& out, float factor) {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high = maximum[m][half];
#pragma unroll
        for (int n = 0; n < columns; ++n) {
          high = fmaxf(high, fmaxf(scores.value[m][n][2 * half], scores.value[m][n][2 * half + 1]));
        }
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
        // A row that has seen no key: −inf − (−inf) is no number; any finite number will do.
        const float subtract =
            high == -std::numeric_limits<float>::infinity() ? 0.0f : __fmul_rn(high, factor);
        // Both terms are rounded alike, so that a maximum that stays corrects by exactly 1. A fused
        // multiply-add leaves the residual of one rounding, and the factors of all tiles multiply.
        const float correction = power_of_two(__fsub_rn(__fmul_rn(maximum[m][half], factor), subtract));
        maximum[m][half] = high;
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < columns; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            float& score = scores.value[m][n][e];
            score = power_of_two(fmaf(score, factor, -subtract));
            total += score;
          }
        }
        sum[m][half] = fmaf(sum[m][half], correction, total);
        // After the first tiles maxima seldom rise. Narrow rows are scaled sooner than asked. A NaN is
        // unequal to 1.
        if (out_columns > 8 && !__any_sync(0xffffffffu, correction != 1.0f)) continue;
#pragma unroll
        for (int n = 0; n < out_columns; ++n) {
          out.value[m][n][2 * half] *= correction;
          out.value[m][n][2 * half + 1] *= correction;
        }
      }
    }
  }

  /// The sum of a row over all lanes that share it.
  __device__ __forceinline__ float total(int m, int half) const {
    float value = sum[m][half];
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    value += __shfl_xor_sync(0xffffffffu, value, 2);
    return value;
  }
};

/// Scores that the words of a tile do not allow become `masked`.
template <int blocks, int columns>
__device__ __forceinline__ void mask_scores(Accumulator<blocks, columns>& scores, const std::uint64_t* words,
                                            float masked) {
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t word = words[row_of(m, 2 * half)] >> (threadIdx.x % 4 * 2);
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        if ((word >> (8 * n) & 1) == 0) scores.value[m][n][2 * half] = masked;
        if ((word >> (8 * n + 1) & 1) == 0) scores.value[m][n][2 * half + 1] = masked;
      }
    }
  }
}

/// Scale of what the softmax sees: products of queries and keys, or tangents of capped scores.
template <bool capped, class T>
__device__ __forceinline__ float softmax_scale(const Input<T>& in) {
  return capped ? in.soft_cap : in.scale;
}

/// scores = tanh(factor · scores). `factor` is scale / soft_cap.
template <int blocks, int columns>
__device__ __forceinline__ void take_tangents(Accumulator<blocks, columns>& scores, float factor) {
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores.value[m][n][e] = gpu::tangent(factor * scores.value[m][n][e]);
    }
  }
}

/// Merges the normalised result of a warp's rows, row_at(0), row_at(1), …, into (out, lse)
/// (attention::forward).
template <bool capped, int blocks, int columns, class T, class RowAt>
__device__ void merge_rows(const ForwardProblem<T>& problem, int batch, int head, const RowAt& row_at,
                           int rows, int columns_in_memory, const Accumulator<blocks, columns>& block,
                           const WarpSoftmax<blocks>& softmax) {
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(m, 2 * half);
      const float total = softmax.total(m, half);
      if (row >= rows || total == 0.0f) continue;  // no key; a NaN goes on, so that it is seen
      float* const running_lse = problem.lse.at(batch, head, row_at(row));
      const RowMerge step = RowMerge::of(
          *running_lse, softmax.maximum[m][half] * softmax_scale<capped>(problem.in) + logf(total));
      __syncwarp(0xfu << (threadIdx.x % 32 & ~3u));  // the four lanes of the row have read the LSE
      float* const running = problem.out.at(batch, head, row_at(row));
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        if (8 * n >= columns_in_memory) continue;
        auto& pair = *reinterpret_cast<float2*>(running + column_of(n, 0));
        pair.x -= step.weight * (pair.x - block.value[m][n][2 * half] / total);
        pair.y -= step.weight * (pair.y - block.value[m][n][2 * half + 1] / total);
      }
      if (threadIdx.x % 4 == 0) *running_lse = step.lse;
    }
  }
}

/// Attends to the keys of a stage. `words`: of the warp's rows, where the tile is partial, else null.
/// `skips`: whether many tiles have warps whose rows see none of their keys.
template <bool capped, bool skips, class T, int head_dim>
__device__ __forceinline__ void attend(const Input<T>& in, const ForwardTiles<head_dim>& memory, int stage,
                                       int warp_first, const std::uint64_t* words,
                                       WarpSoftmax<ForwardShape::blocks>& softmax,
                                       Accumulator<ForwardShape::blocks, head_dim / 8>& out) {
  if constexpr (skips) {
    static_assert(16 * ForwardShape::blocks == 32, "a word for each lane");
    if (words != nullptr && !__any_sync(0xffffffffu, words[threadIdx.x % 32] != 0)) return;
  }
  Accumulator<ForwardShape::blocks, inner_rows / 8> scores;
  multiply_rows<T>(scores, memory.q, warp_first, memory.k[stage]);
  if constexpr (capped) take_tangents(scores, in.scale / in.soft_cap);
  if (words != nullptr) mask_scores(scores, words, -std::numeric_limits<float>::infinity());
  softmax.add(scores, out, softmax_scale<capped>(in) * log2_e);
  add_weighted<T>(out, scores, memory.v[stage]);
}

/// Attends to the tiles of a walk from `tile` on, which load(tile, 0) has been called for. `allowed`: words
/// of both stages, for all rows of the block.
template <bool capped, bool skips, class T, int head_dim, class Walk, class Load>
__device__ __forceinline__ void attend_from(const Input<T>& in, const ForwardTiles<head_dim>& memory,
                                            Walk& walk, WalkTile tile, const Load& load,
                                            const std::uint64_t (&allowed)[2][ForwardShape::own_rows],
                                            int warp_first, WarpSoftmax<ForwardShape::blocks>& softmax,
                                            Accumulator<ForwardShape::blocks, head_dim / 8>& out) {
  for (int stage = 0; tile.rows > 0; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this stage has come, the other has been used
    const WalkTile next = walk.next(tile.first + inner_rows);
    if (next.rows > 0) load(next, stage ^ 1);
    attend<capped, skips>(in, memory, stage, warp_first, tile.partial ? allowed[stage] + warp_first : nullptr,
                          softmax, out);
    tile = next;
  }
}

/// `of_heads`: heads have block lists or listed keys of their own.
template <class T, int head_dim, bool clipped, bool capped, bool of_heads>
__global__ void __launch_bounds__(ForwardShape::threads, 2)
    forward_kernel(const __grid_constant__ ForwardProblem<T> problem) {
  using Shape = ForwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ WalkMemory<Shape::own_rows> walk_memory;
  __shared__ HeadMask<of_heads> mask;
  const ForwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  const int columns = clipped ? in.head_dim : head_dim;
  // Causal: the longest first, so that no block ends late.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::own_rows;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (in.heads / in.kv_heads);
  const int rows = min(Shape::own_rows, static_cast<int>(in.q_positions.count) - first);
  mask.turn_to(in, batch, head);
  TileWalk<Owner::queries, Shape::own_rows, Shape::threads, of_heads> walk(
      mask.rule(in), in.q_positions, first, rows, mask.keys(in), walk_memory);

  const auto load = [&](const WalkTile& tile, int stage) {
    memory.load_keys(in, batch, kv_head, tile, columns, stage);
    if (tile.partial) walk.write_words(tile, stage);
  };

  const WalkTile tile = walk.next(walk.begin());
  if (tile.rows == 0) return;
  memory.q.template load<Shape::threads>(in.q.at(batch, head, first), in.q.row_stride, rows, columns);
  load(tile, 0);

  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16 * Shape::blocks;
  WarpSoftmax<Shape::blocks> softmax;
  Accumulator<Shape::blocks, head_dim / 8> out;
  out.clear();
  attend_from<capped, of_heads>(in, memory, walk, tile, load, walk_memory.allowed, warp_first, softmax, out);
  const auto row_at = [&](int row) { return first + warp_first + row; };
  merge_rows<capped>(problem, batch, head, row_at, rows - warp_first, columns, out, softmax);
}

}  // namespace annulus::attention::mma
