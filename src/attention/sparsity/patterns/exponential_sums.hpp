#pragma once

#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/key_tiles.hpp"
#include "base/kokkos/exponential.hpp"
#include "base/kokkos/pack.hpp"

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

namespace exponential_detail {  // named: device compilers want lambdas and their captures to have linkage

/// `width` divides the queries.
template <int width, class Exec>
void add(const Exec& exec, const attention::KeyTiles& tiles, std::int64_t groups,
         const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima, int exponent,
         const Array1<std::int64_t, Exec>& sums) {
  constexpr int at_once = 4;  // loads that do not wait for each other
  const auto heads = static_cast<std::int64_t>(scores.extent(0)),
             rows = static_cast<std::int64_t>(scores.extent(1)),
             queries = static_cast<std::int64_t>(scores.extent(2)), packs = queries / width;
  Kokkos::parallel_for(
      "annulus::sparsity::exponential_sums", Kokkos::RangePolicy<Exec>(exec, 0, tiles.count * heads * packs),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / packs % heads, query = i % packs * width;
        // Of a thread: few keys, so that a GPU has threads enough to wait for memory.
        const attention::KeyTile tile = tiles.tile(i / packs / heads, rows);
        const std::int64_t place = (head * groups + tile.group) * queries + query;
        const Pack<width> highest = load<width>(&maxima(place));
        std::int64_t sum[width] = {};
        const auto add_rows = [&](auto count, std::int32_t row) {
          Pack<width> some[count()];
          for (int r = 0; r < count(); ++r) some[r] = load<width>(&scores(head, tile.first + row + r, query));
          for (const Pack<width>& of_row : some)
            for (int n = 0; n < width; ++n)
              sum[n] += scaled_floor(exponential(of_row[n] - highest[n]), exponent);
        };
        std::int32_t row = 0;
        for (; row + at_once <= tile.rows; row += at_once)
          add_rows(std::integral_constant<int, at_once>(), row);
        for (; row < tile.rows; ++row) add_rows(std::integral_constant<int, 1>(), row);
        for (int n = 0; n < width; ++n)
          if (highest[n] != -Kokkos::Experimental::infinity_v<float>)
            Kokkos::atomic_add(&sums(place + n), sum[n]);
      });
}

}  // namespace exponential_detail

/// Adds exp(score − maximum), in units of 2^−exponent, to sums (heads · groups · queries): of scores (heads,
/// keys, queries of a group) and their maxima, as of attention::causal_scores. Queries without a score have
/// no exponentials.
template <class Exec>
void add_exponentials(const Exec& exec, const attention::KeyTiles& tiles, std::int64_t groups,
                      const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima, int exponent,
                      const Array1<std::int64_t, Exec>& sums) {
  const bool packs = in_packs<Exec, float>(static_cast<std::int64_t>(scores.extent(2)), scores, maxima);
  with_pack_width<Exec, float>(packs, [&](auto width) {
    exponential_detail::add<width(), Exec>(exec, tiles, groups, scores, maxima, exponent, sums);
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
