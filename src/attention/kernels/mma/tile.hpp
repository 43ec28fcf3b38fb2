#pragma once

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/mma/instructions.hpp"

namespace annulus::attention::mma {

using gpu::BackwardProblem;
using gpu::ForwardProblem;
using gpu::Input;
using gpu::log2_e;
using gpu::Rows;

/// A tile of rows in shared memory, (rows, head_dim) of 16-bit elements. Chunk c (8 elements) of row r lies
/// at place c ^ (r mod 8) of its row, so that the same chunk of eight neighbouring rows falls into all 32
/// banks: ldmatrix then reads without conflicts, and no padding is needed. With 96 columns two neighbours
/// begin in different banks, and it is c ^ (r / 2 mod 4).
template <int rows, int head_dim>
struct Tile {
  static constexpr int chunks = head_dim / 8;
  /// The largest power of two that divides `chunks`: places change among so many neighbours alone.
  static constexpr int threads_of_row = chunks & -chunks;
  static constexpr int orders = threads_of_row < 8 ? threads_of_row : 8;
  static constexpr int bytes = rows * head_dim * 2;
  std::uint32_t address;

  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    return address + row * (head_dim * 2) + ((chunk ^ (row / (8 / orders) & (orders - 1))) << 4);
  }

  /// Starts to copy `columns` of `count` rows; the others become zero. All threads of the block take part.
  template <int threads, class T>
  __device__ __forceinline__ void load(const T* from, std::int64_t stride, int count, int columns) const {
    // A thread keeps its place among the neighbouring chunks and its row modulo 8, so that addresses differ
    // by constants.
    constexpr int step = threads / threads_of_row;
    static_assert(threads % threads_of_row == 0 && rows % step == 0 && step % 8 == 0);
    const int chunk = static_cast<int>(threadIdx.x) % threads_of_row,
              row = static_cast<int>(threadIdx.x) / threads_of_row;
    const std::uint32_t to = at(row, chunk);
    const T* source = from + row * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < rows; i += step) {
#pragma unroll
      for (int first = 0; first < chunks; first += threads_of_row) {
        const bool valid = row + i < count && (first + chunk) * 8 < columns;
        copy_16_bytes(to + i * (head_dim * 2) + first * 16, valid ? source + first * 8 : from, valid);
      }
      source += step * stride;
    }
  }

  /// load() of the rows row_at(0), row_at(1), …
  template <int threads, class T, class RowAt>
  __device__ __forceinline__ void load_listed(const T* from, std::int64_t stride, const RowAt& row_at,
                                              int count, int columns) const {
    constexpr int step = threads / threads_of_row;
    static_assert(threads % threads_of_row == 0 && rows % step == 0 && step % 8 == 0);
    const int chunk = static_cast<int>(threadIdx.x) % threads_of_row,
              row = static_cast<int>(threadIdx.x) / threads_of_row;
    const std::uint32_t to = at(row, chunk);
#pragma unroll
    for (int i = 0; i < rows; i += step) {
      const bool exists = row + i < count;
      const T* const source = from + (exists ? row_at(row + i) : 0) * stride + chunk * 8;
#pragma unroll
      for (int first = 0; first < chunks; first += threads_of_row) {
        const bool valid = exists && (first + chunk) * 8 < columns;
        copy_16_bytes(to + i * (head_dim * 2) + first * 16, valid ? source + first * 8 : from, valid);
      }
    }
  }
};

}  // namespace annulus::attention::mma
