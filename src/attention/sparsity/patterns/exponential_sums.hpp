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

/// ⌊x · 2ᵉ⌋ for 0 ≤ x ≤ 1, by shifting the number's bits: GPUs convert to and from 64 bits at an eighth of
/// the rate of what they compute.
KOKKOS_INLINE_FUNCTION std::int64_t scaled_floor(float x, int exponent) {
  const auto bits = Kokkos::bit_cast<std::uint32_t>(x);
  const std::int64_t significand = (bits & 0x7fffffu) | 0x800000u;
  const int shift = static_cast<int>(bits >> 23) - 150 + exponent;  // 127, and the 23 bits of the fraction
  if (shift >= 0) return significand << (shift & 63);
  return shift > -24 ? significand >> -shift : 0;
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
        constexpr int at_once = 8;  // loads that do not wait for each other
        for (int first = 0; first < tile.rows; first += at_once) {
          float some[at_once];
          for (int r = 0; r < at_once; ++r)
            some[r] = first + r < tile.rows ? scores(head, tile.first + first + r, query)
                                            : -Kokkos::Experimental::infinity_v<float>;
          for (int r = 0; r < at_once; ++r) sum += scaled_floor(exponential(some[r] - highest), exponent);
        }
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
