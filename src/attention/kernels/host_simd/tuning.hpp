#pragma once

#include <algorithm>

#include <annulus/base/division.hpp>

#include "attention/kernels/host_simd/simd.hpp"

/// Block sizes of the host kernels, in one place.
namespace annulus::attention::host_simd {

/// Shape of the register block of a product: `rows` broadcast operands times `vectors` loaded ones.
struct RegisterBlock {
  int rows, vectors;
};

/// rows · vectors accumulators, `vectors` operands and one broadcast must fit in the registers; at least
/// (multiply-add latency 4) · (2 pipes) = 8 accumulators hide the latency; rows + vectors loads must stay
/// below the rows · vectors multiply-adds that they feed, for processors do two of each a cycle. `rows`
/// divides 8, so that no head dimension leaves a remainder.
constexpr RegisterBlock register_block(int vector_width) {
  switch (vector_width) {
    case 16:
      return {8, 3};  // AVX-512, 32 registers: 24 + 3 + 1
    case 8:
      return {4, 3};  // AVX2, 16 registers: 12 + 3 + 1
    case 4:
      return {8, 3};  // NEON, 32 registers
    default:
      return {4, 4};  // no SIMD: 16 scalar accumulators
  }
}

inline constexpr int block_rows = register_block(width).rows;
inline constexpr int block_vectors = register_block(width).vectors;
static_assert(8 % block_rows == 0, "head dimensions are multiples of 8");

/// Lanes of a panel: the width of one register block. Queries in the forward, keys in the backward.
inline constexpr int panel = block_vectors * width;

/// Panels of a query tile of the forward, together 192 queries. A key tile is packed once for all of them,
/// which costs 2 % of what they compute with it; their state (two panels of head_dim rows each) stays in the
/// L2 cache.
inline constexpr int forward_panels = std::max(1, 192 / panel);
/// Keys of a key tile of the forward: scores of a panel (keys · panel floats, 24 KiB with AVX-512) stay in L1
/// together with what the products stream, and the accumulators are loaded and stored only once for so many
/// keys.
inline constexpr int forward_kv_rows = 128;

/// Panels of a key tile of the backward, together 192 keys: four panels of head_dim rows each (Kᵀ, Vᵀ and
/// their gradients) and K itself wait in L2 while the queries pass by; half as many for the large head
/// dimensions.
constexpr int backward_panels(int head_dim) {
  return std::max(1, (head_dim <= 128 ? 192 : 96) / panel);
}
/// Rows of a query tile of the backward: P of a panel fits in L1, gradients are loaded and stored once for so
/// many.
inline constexpr int backward_q_rows = 96;
static_assert(forward_kv_rows % block_rows == 0 && backward_q_rows % block_rows == 0);

/// Floats from one packed row to the next: whole vectors, and an odd number of cache lines so that rows
/// of a power of two do not fall into the same cache set.
constexpr int packed_stride(int columns) {
  const int lines = ceil_divide(round_up(columns, width), 16);
  return (lines % 2 == 0 ? lines + 1 : lines) * 16;
}

/// Calls body(integral_constant vectors), 1 ≤ vectors ≤ block_vectors: from a number to a register block.
template <class Body>
void with_vectors(int vectors, Body&& body) {
  unrolled<block_vectors>([&](auto v) {
    if (vectors == v + 1) body(std::integral_constant<int, v + 1>{});
  });
}

}  // namespace annulus::attention::host_simd
