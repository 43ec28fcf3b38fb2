#include "attention/kernels/host_simd/products.hpp"

#include "attention/kernels/host_simd/tuning.hpp"

namespace annulus::attention::host_simd {
namespace {

/// How a(r, k) lies in memory.
enum class Walk { along_rows, along_columns };

template <int Vectors>
struct Block {
  Vector sum[block_rows][Vectors];
};

// The heart of everything: a register block of sums over `depth`. Both strides of `a` are in registers, so
// that the broadcasts are plain memory operands.
template <Walk walk, int Vectors>
[[gnu::always_inline]] inline void add_products(int depth, const float* a, std::ptrdiff_t a_stride,
                                                const float* b, std::ptrdiff_t b_stride,
                                                Block<Vectors>& block) {
  for (int k = 0; k < depth; ++k) {
    Vector right[Vectors];
    unrolled<Vectors>([&](auto v) { right[v] = load(b + v * width); });
    unrolled<block_rows>([&](auto r) {
      const Vector left(walk == Walk::along_rows ? a[r * a_stride] : a[r]);
      unrolled<Vectors>([&](auto v) { block.sum[r][v] = Kokkos::fma(left, right[v], block.sum[r][v]); });
    });
    a += walk == Walk::along_rows ? 1 : a_stride;
    b += b_stride;
  }
}

template <int Vectors>
void multiply_panel(const ProductSize& size, ConstTile a, ConstTile b, Tile out) {
  const int rows = size.rows, depth = size.depth;
  const std::ptrdiff_t a_stride = a.stride, b_stride = b.stride, out_stride = out.stride;
  for (int row = 0; row < rows; row += block_rows) {
    Block<Vectors> block;
    unrolled<block_rows>([&](auto r) { unrolled<Vectors>([&](auto v) { block.sum[r][v] = Vector(0.0f); }); });
    add_products<Walk::along_rows>(depth, a.data + row * a_stride, a_stride, b.data, b_stride, block);
    float* to = out.data + row * out_stride;
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { store(block.sum[r][v], to + r * out_stride + v * width); });
    });
  }
}

template <int Vectors>
void accumulate_panel(const ProductSize& size, ConstTile a, ConstTile b, const float* factor, Tile out) {
  const int rows = size.rows, depth = size.depth;
  const std::ptrdiff_t a_stride = a.stride, b_stride = b.stride, out_stride = out.stride;
  for (int row = 0; row < rows; row += block_rows) {
    float* to = out.data + row * out_stride;
    Block<Vectors> block;
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { block.sum[r][v] = load(to + r * out_stride + v * width); });
    });
    if (factor != nullptr) {
      unrolled<Vectors>([&](auto v) {
        const Vector scale = load(factor + v * width);
        unrolled<block_rows>([&](auto r) { block.sum[r][v] = block.sum[r][v] * scale; });
      });
    }
    add_products<Walk::along_columns>(depth, a.data + row, a_stride, b.data, b_stride, block);
    unrolled<block_rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) { store(block.sum[r][v], to + r * out_stride + v * width); });
    });
  }
}

}  // namespace

void multiply(const ProductSize& size, ConstTile a, ConstTile b, Tile out) {
  with_vectors(size.vectors, [&](auto v) { multiply_panel<v>(size, a, b, out); });
}

void accumulate(const ProductSize& size, ConstTile a, ConstTile b, const float* factor, Tile out) {
  with_vectors(size.vectors, [&](auto v) { accumulate_panel<v>(size, a, b, factor, out); });
}

}  // namespace annulus::attention::host_simd
