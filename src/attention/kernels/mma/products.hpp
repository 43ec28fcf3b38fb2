#pragma once

#include "attention/kernels/mma/tile.hpp"

namespace annulus::attention::mma {

/// A warp's piece of a product, 16·blocks rows × 8·columns columns in fp32. Lane 4·g + t holds of each 16 × 8
/// tile the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
template <int blocks, int columns>
struct Accumulator {
  float value[blocks][columns][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) value[m][n][e] = 0.0f;
      }
    }
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) value[m][n][e] *= factor;
      }
    }
  }
};

/// The row, of 16·blocks, that element e of block m belongs to.
__device__ __forceinline__ int row_of(int m, int e) {
  return m * 16 + (e >> 1) * 8 + static_cast<int>(threadIdx.x % 32) / 4;
}
/// The column of element e of tile n.
__device__ __forceinline__ int column_of(int n, int e) {
  return n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + (e & 1);
}

/// result += rows [first, first + 16·blocks) of a · bᵀ, over head_dim.
template <class T, int blocks, int columns, int a_rows, int b_rows, int head_dim>
__device__ __forceinline__ void add_rows(Accumulator<blocks, columns>& result, Tile<a_rows, head_dim> a,
                                         int first, Tile<b_rows, head_dim> b) {
  static_assert(columns * 8 == b_rows);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int k = 0; k < head_dim / 16; ++k) {
    std::uint32_t left[blocks][4];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      load_matrices(left[m], a.at(first + m * 16 + (lane & 15), 2 * k + (lane >> 4)));
    }
#pragma unroll
    for (int n = 0; n < columns; n += 2) {
      std::uint32_t right[4];
      load_matrices(right, b.at(n * 8 + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
        multiply_add<T>(result.value[m][n], left[m], right[0], right[1]);
        multiply_add<T>(result.value[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// result = these rows of a · bᵀ: scores, and dO·Vᵀ.
template <class T, int blocks, int columns, int a_rows, int b_rows, int head_dim>
__device__ __forceinline__ void multiply_rows(Accumulator<blocks, columns>& result, Tile<a_rows, head_dim> a,
                                              int first, Tile<b_rows, head_dim> b) {
  result.clear();
  add_rows<T>(result, a, first, b);
}

/// result += weights · b, over the rows of b: P·V and the gradients. The weights are rounded to T; what an
/// accumulator holds is already where the left factor has to be.
template <class T, int blocks, int inner, int columns, int b_rows, int head_dim>
__device__ __forceinline__ void add_weighted(Accumulator<blocks, columns>& result,
                                             const Accumulator<blocks, inner>& weights,
                                             Tile<b_rows, head_dim> b) {
  static_assert(columns * 8 == head_dim && inner * 8 == b_rows);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int k = 0; k < b_rows / 16; ++k) {
    std::uint32_t left[blocks][4];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = weights.value[m][2 * k + i / 2];
        left[m][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < columns; n += 2) {
      std::uint32_t right[4];
      load_transposed_matrices(right, b.at(k * 16 + (lane & 15), n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
        multiply_add<T>(result.value[m][n], left[m], right[0], right[1]);
        multiply_add<T>(result.value[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

}  // namespace annulus::attention::mma
