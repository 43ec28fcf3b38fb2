#pragma once

#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdint>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/key_tiles.hpp"
#include "base/kokkos/exponential.hpp"

/// Sums of a query's exponentials over its keys, of 64-bit integers, so that nobody's order matters.
namespace annulus::sparsity {

/// The largest e ≤ 44 such that `keys` exponentials of at most 1 sum to less than 2⁶² in units of 2⁻ᵉ.
inline int unit_exponent(std::int64_t keys) {
  int exponent = 44;
  while (std::ldexp(static_cast<double>(keys), exponent) > 0x1p61) --exponent;
  return exponent;
}

/// ⌊x · 2ᵉ⌋ for 0 ≤ x ≤ 1 and e ≤ 44, of the number's bits: GPUs convert to and from 64 bits at an eighth of
/// the rate of what they compute, and multiply 32 bits to 64 in one instruction.
KOKKOS_INLINE_FUNCTION std::int64_t scaled_floor(float x, int exponent) {
  const auto bits = Kokkos::bit_cast<std::uint32_t>(x);
  const std::uint32_t significand = (bits & 0x7fffffu) | 0x800000u;
  const int shift = static_cast<int>(bits >> 23) - 150 + exponent;  // 127, and the 23 bits of the fraction
  const int up = Kokkos::max(shift, 0), down = Kokkos::min(up - shift, 31);
  return static_cast<std::int64_t>(std::uint64_t{significand >> down} * (1u << (up & 31)));
}

/// Adds exp(score − maximum), in units of 2^−exponent, to sums (heads · groups · queries): of scores (heads,
/// keys, queries of a group) and their maxima, as of attention::causal_scores. Queries without a score have
/// no exponentials.
template <class Exec>
void add_exponentials(const Exec& exec, const attention::KeyTiles& tiles, std::int64_t groups,
                      const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima, int exponent,
                      const Array1<std::int64_t, Exec>& sums) {
  const auto heads = static_cast<std::int64_t>(scores.extent(0)),
             rows = static_cast<std::int64_t>(scores.extent(1)),
             queries = static_cast<std::int64_t>(scores.extent(2));
  Kokkos::parallel_for(
      "annulus::sparsity::exponential_sums",
      Kokkos::RangePolicy<Exec>(exec, 0, tiles.count * heads * queries), KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / queries % heads, query = i % queries;
        // Of a thread: few keys, so that a GPU has threads enough to wait for memory.
        const attention::KeyTile tile = tiles.tile(i / queries / heads, rows);
        const std::int64_t place = (head * groups + tile.group) * queries + query;
        const float highest = maxima(place);
        if (highest == -Kokkos::Experimental::infinity_v<float>) return;
        std::int64_t sum = 0;
        for (std::int64_t row = tile.first; row < tile.first + tile.rows; ++row)
          sum += scaled_floor(exponential(scores(head, row, query) - highest), exponent);
        Kokkos::atomic_add(&sums(place), sum);
      });
}

/// inverse_sums(i) = 1 / the sum of the exponentials of query i.
template <class Exec>
void invert(const Exec& exec, const Array1<std::int64_t, Exec>& sums, int exponent,
            const Array1<float, Exec>& inverse_sums) {
  const double one = std::ldexp(1.0, exponent);
  Kokkos::parallel_for(
      "annulus::sparsity::inverse_sums", Kokkos::RangePolicy<Exec>(exec, 0, sums.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        inverse_sums(i) = static_cast<float>(one / static_cast<double>(sums(i)));
      });
}

}  // namespace annulus::sparsity
