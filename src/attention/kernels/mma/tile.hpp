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
/// banks: ldmatrix then reads without conflicts, and no padding is needed.
template <int rows, int head_dim>
struct Tile {
  static constexpr int chunks = head_dim / 8;
  static constexpr int bytes = rows * head_dim * 2;
  std::uint32_t address;

  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    return address + row * (head_dim * 2) + ((chunk ^ (row & 7)) << 4);
  }

  /// Starts to copy `count` rows; the others become zero. All threads of the block take part.
  template <int threads, class T>
  __device__ __forceinline__ void load(const T* from, std::int64_t stride, int count) const {
    // A thread keeps its chunk and its row modulo 8, so that addresses differ by constants.
    constexpr int step = threads / chunks;
    static_assert(threads % chunks == 0 && rows % step == 0 && step % 8 == 0);
    const int chunk = static_cast<int>(threadIdx.x) % chunks, row = static_cast<int>(threadIdx.x) / chunks;
    const std::uint32_t to = at(row, chunk);
    const T* source = from + row * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < rows; i += step) {
      const bool valid = row + i < count;
      copy_16_bytes(to + i * (head_dim * 2), valid ? source : from, valid);
      source += step * stride;
    }
  }
};

}  // namespace annulus::attention::mma
