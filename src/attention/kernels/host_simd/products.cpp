#include "attention/kernels/host_simd/products.hpp"

#include <bit>

#include "attention/kernels/host_simd/tuning.hpp"

namespace annulus::attention::host_simd {
namespace {

/// How a(r, k) lies in memory.
enum class LeftFactor { along_rows, along_columns };

// GCC, tuning for Zen 2 or 3, folds a load into each of the block_rows multiply-adds that use the vector. The
// loads, of which these processors make two a cycle, then bound the rate, at 0.7 of the multiply-adds'. A
// volatile load is made once.
using Floats [[gnu::vector_size(width * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
    float;
[[gnu::always_inline]] inline Vector load_once(const float* from) {
  const Floats floats = *reinterpret_cast<const volatile Floats*>(from);
  return std::bit_cast<Vector>(floats);
}

template <int Vectors>
struct SumBlock {
  Vector sum[block_rows][Vectors];
};

// The heart of everything: a register block of sums over `depth`. Both strides of `a` are in registers, so
// that the broadcasts are plain memory operands.
template <LeftFactor walk, int Vectors>
[[gnu::always_inline]] inline void add_products(int depth, const float* a, std::ptrdiff_t a_stride,
                                                const float* b, std::ptrdiff_t b_stride,
                                                SumBlock<Vectors>& block) {
  for (int k = 0; k < depth; ++k) {
    Vector right[Vectors];
    unrolled<Vectors>([&](auto v) { right[v] = load_once(b + v * width); });
    unrolled<block_rows>([&](auto r) {
      const Vector left(walk == LeftFactor::along_rows ? a[r * a_stride] : a[r]);
      unrolled<Vectors>([&](auto v) { block.sum[r][v] = Kokkos::fma(left, right[v], block.sum[r][v]); });
    });
    a += walk == LeftFactor::along_rows ? 1 : a_stride;
    b += b_stride;
  }
}

template <int Vectors>
void multiply_panel(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b, StridedTile out) {
  const int rows = size.rows, depth = size.depth;
  const std::ptrdiff_t a_stride = a.stride, b_stride = b.stride, out_stride = out.stride;
  for (int row = 0; row < rows; row += block_rows) {
    SumBlock<Vectors> block;
    unrolled<block_rows>([&](auto r) { unrolled<Vectors>([&](auto v) { block.sum[r][v] = Vector(0.0f); }); });
    add_products<LeftFactor::along_rows>(depth, a.data + row * a_stride, a_stride, b.data, b_stride, block);
    float* to = out.data + row * out_stride;
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { store(block.sum[r][v], to + r * out_stride + v * width); });
    });
  }
}

template <int Vectors>
void accumulate_panel(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b,
                      const float* factor, StridedTile out) {
  const int rows = size.rows, depth = size.depth;
  const std::ptrdiff_t a_stride = a.stride, b_stride = b.stride, out_stride = out.stride;
  for (int row = 0; row < rows; row += block_rows) {
    float* to = out.data + row * out_stride;
    SumBlock<Vectors> block;
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { block.sum[r][v] = load(to + r * out_stride + v * width); });
    });
    if (factor != nullptr) {
      unrolled<Vectors>([&](auto v) {
        const Vector scale = load(factor + v * width);
        unrolled<block_rows>([&](auto r) { block.sum[r][v] = block.sum[r][v] * scale; });
      });
    }
    add_products<LeftFactor::along_columns>(depth, a.data + row, a_stride, b.data, b_stride, block);
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { store(block.sum[r][v], to + r * out_stride + v * width); });
    });
  }
}

}  // namespace

void multiply(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b, StridedTile out) {
  with_vectors(size.vectors, [&](auto v) { multiply_panel<v>(size, a, b, out); });
}

void accumulate(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b, const float* factor,
                StridedTile out) {
  with_vectors(size.vectors, [&](auto v) { accumulate_panel<v>(size, a, b, factor, out); });
}

}  // namespace annulus::attention::host_simd
