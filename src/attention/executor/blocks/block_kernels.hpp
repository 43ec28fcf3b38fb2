#pragma once

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/executor/blocks/block.hpp"

/// Kernels that move and add up blocks. `base` is the beginning of the array that the block is a part of.
namespace annulus::executor {

/// Elements of the block, `stored` in memory, one after another to `out`, converted to `wire`.
template <class Exec>
void pack(const Exec& exec, const StridedBlock& block, const void* base, DType stored, void* out, DType wire);

/// The inverse of pack.
template <class Exec>
void unpack(const Exec& exec, const void* in, DType wire, const StridedBlock& block, void* base,
            DType stored);

/// to += from, both fp32 and of the same shape.
template <class Exec>
void add(const Exec& exec, const StridedBlock& from, const float* from_base, const StridedBlock& to,
         float* to_base);

/// Sets every element of an fp32 block.
template <class Exec>
void fill(const Exec& exec, const StridedBlock& block, float* base, float value);

/// The block as a View of rank 4 (batch, heads, rows, width).
template <class T, class Exec>
Strided4<T, Exec> view4(const StridedBlock& b, T* base) {
  const Kokkos::LayoutStride layout(b.batch, b.batch_stride, b.heads, b.head_stride, b.rows, b.width, b.width,
                                    1);
  return Strided4<T, Exec>(base + b.offset, layout);
}

/// The block of a row statistic as a View of rank 3 (batch, heads, rows).
template <class T, class Exec>
Strided3<T, Exec> view3(const StridedBlock& b, T* base) {
  const Kokkos::LayoutStride layout(b.batch, b.batch_stride, b.heads, b.head_stride, b.rows, 1);
  return Strided3<T, Exec>(base + b.offset, layout);
}

}  // namespace annulus::executor
