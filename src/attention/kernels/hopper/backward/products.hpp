#pragma once

#include "attention/kernels/gpu/capped_power.hpp"
#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/backward/shared_memory.hpp"
#include "attention/kernels/hopper/tile/element_mask.hpp"

/// What the consumer warpgroups do in both forms of the backward pass.
namespace annulus::attention::hopper {

/// r (64 keys × M queries) = 64 rows of K or V · (M rows of Q or dO)ᵀ
template <class T, class Tile, int M, int depth = Tile::head_dim>
__device__ __forceinline__ void issue_scores(float (&r)[M / 2], MatrixDescriptor rows,
                                             MatrixDescriptor queries) {
  using Memory = BackwardSharedMemory<Tile>;
#pragma unroll
  for (int step = 0; step < depth / 16; ++step) {
    Wgmma<T, M>::template shared<false, false>(r, rows + (step / 4 * Memory::kv_atom + step % 4 * 32),
                                               queries + (step / 4 * Memory::q_atom + step % 4 * 32),
                                               step > 0);
  }
  wgmma_commit();
}

/// 64 rows of K or V as left factors in registers.
template <class Tile, int depth>
struct RowsInRegisters {
  std::uint32_t parts[depth / 4];

  /// From a tile in shared memory that begins with them; by a whole warpgroup.
  __device__ __forceinline__ void load(std::uint32_t tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              warp = static_cast<int>(threadIdx.x) % warpgroup / 32;
    const std::uint32_t address = swizzled(tile, warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < depth / 16; ++step) {
      load_matrices(parts + 4 * step,
                    (address ^ step % 4 * 32) + step / 4 * BackwardSharedMemory<Tile>::kv_atom);
    }
  }
};

/// issue_scores() with such rows.
template <class T, class Tile, int M, int depth>
__device__ __forceinline__ void issue_scores(float (&r)[M / 2], const RowsInRegisters<Tile, depth>& rows,
                                             MatrixDescriptor queries) {
  using Memory = BackwardSharedMemory<Tile>;
#pragma unroll
  for (int step = 0; step < depth / 16; ++step) {
    Wgmma<T, M>::template registers<false>(r, rows.parts + 4 * step,
                                           queries + (step / 4 * Memory::q_atom + step % 4 * 32), step > 0);
  }
  wgmma_commit();
}

/// r (64 keys × C columns) += weights (64 keys × M queries, in registers) · M rows of dO or Q
template <class T, int M, int C>
__device__ __forceinline__ void issue_gradient(float (&r)[C / 2], const std::uint32_t (&weights)[M / 4],
                                               MatrixDescriptor columns) {
#pragma unroll
  for (int step = 0; step < M / 16; ++step) {
    Wgmma<T, C>::template registers<true>(r, weights + 4 * step, columns + step * 16 * atom_row_bytes, true);
  }
}

/// s = 2^(factor · s − lse2). `lse2_of(j)`: of queries 8j and 8j + 1, from the column of this lane on.
template <int M, class Pair>
__device__ __forceinline__ void take_powers(float (&s)[M / 2], float factor, const Pair& lse2_of) {
#pragma unroll
  for (int j = 0; j < M / 8; ++j) {
    const float2 lse2 = lse2_of(j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + 2 * i] = gpu::power_of_two(fmaf(s[4 * j + 2 * i], factor, -lse2.x));
      s[4 * j + 2 * i + 1] = gpu::power_of_two(fmaf(s[4 * j + 2 * i + 1], factor, -lse2.y));
    }
  }
}

/// take_powers() of capped scores: `probabilities` become P in 16 bits, and s what dS has in the place of P,
/// the derivative of P by the score before the cap.
template <class T, int M, class Pair>
__device__ __forceinline__ void take_capped_powers(float (&s)[M / 2], std::uint32_t (&probabilities)[M / 4],
                                                   const gpu::CapFactors& factors, const Pair& lse2_of) {
#pragma unroll
  for (int j = 0; j < M / 8; ++j) {
    const float2 lse2 = lse2_of(j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto first = gpu::CappedPower::of(s[4 * j + 2 * i], factors, lse2.x),
                 second = gpu::CappedPower::of(s[4 * j + 2 * i + 1], factors, lse2.y);
      probabilities[2 * j + i] = gpu::pack<T>(first.value, second.value);
      s[4 * j + 2 * i] = first.value * first.slope;
      s[4 * j + 2 * i + 1] = second.value * second.slope;
    }
  }
}

/// One of the numbers that pack() has made two by two becomes 0.
template <int count>
__device__ __forceinline__ void clear_packed(std::uint32_t (&pairs)[count], int place) {
  pairs[place / 2] &= place % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
}

/// dS = P ∘ (dP − D), in 16 bits.
template <class T, int M, class Pair>
__device__ __forceinline__ void score_gradients(std::uint32_t (&ds)[M / 4], const float (&p)[M / 2],
                                                const float (&dp)[M / 2], const Pair& d_of) {
#pragma unroll
  for (int j = 0; j < M / 8; ++j) {
    const float2 d = d_of(j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ds[2 * j + i] = gpu::pack<T>(p[4 * j + 2 * i] * (dp[4 * j + 2 * i] - d.x),
                                   p[4 * j + 2 * i + 1] * (dp[4 * j + 2 * i + 1] - d.y));
    }
  }
}

/// Calls clear(place) for what spans leave out of the queries from `first` on, the column of this lane
/// included.
template <int M, class Clear>
__device__ __forceinline__ void for_each_outside(const RowSpan (&spans)[2], int first, const Clear& clear) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = spans[i].begin - first, end = spans[i].end - first;
#pragma unroll
    for (int j = 0; j < M / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < begin || 8 * j + e >= end) clear(4 * j + 2 * i + e);
      }
    }
  }
}

/// Writes `factor` · `gradient`, rows `own_row` and `own_row` + 8 of `rows` of a class and columns
/// `first_column` + 8j + e, or adds it. `columns`: of a row in memory, if `clipped`. No other block adds to
/// these rows but that of the other half of the tile's loops (TileOrder::parts).
template <int C, bool clipped>
__device__ __forceinline__ void leave_gradient(const gpu::Rows<float>& of, bool fresh, float factor,
                                               const float (&gradient)[C / 2], int batch, int head,
                                               const DilationClasses& classes, int dilation_class, int rows,
                                               int columns, int own_row, int first_column) {
  const auto put = [&](float* to, float x, float y) {
    if (fresh) {
      *reinterpret_cast<float2*>(to) = make_float2(x, y);
    } else {
      add_to(to, x, y);
    }
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (own_row + 8 * i >= classes.rows(rows, dilation_class)) continue;
    float* const row = of.at(batch, head, classes.row(own_row + 8 * i, dilation_class)) + first_column;
#pragma unroll
    for (int j = 0; j < C / 8; ++j) {
      if (!clipped || 8 * j < columns)
        put(row + 8 * j, factor * gradient[4 * j + 2 * i], factor * gradient[4 * j + 2 * i + 1]);
    }
  }
}

}  // namespace annulus::attention::hopper
