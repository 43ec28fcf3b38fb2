#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>
#include <limits>

namespace annulus {

namespace detail {

/// (2^f − 1) / f for f in [-1/2, 1/2]: that of a minimax polynomial for 2^f (Remez, relative error 2.6e-9,
/// value 1 at 0). V is float or a vector of floats, multiply_add(a, b, c) gives a · b + c. For the host:
/// vectors are nothing for a device.
template <class V, class MultiplyAdd>
[[gnu::always_inline]] inline V exp2_slope(const V& f, const MultiplyAdd& multiply_add) {
  V p(1.559467782e-4f);
  p = multiply_add(p, f, V(1.340664341e-3f));
  p = multiply_add(p, f, V(9.617692791e-3f));
  p = multiply_add(p, f, V(5.550310388e-2f));
  p = multiply_add(p, f, V(2.402265221e-1f));
  return multiply_add(p, f, V(6.931472421e-1f));
}

/// 2^f for f in [-1/2, 1/2].
template <class V, class MultiplyAdd>
[[gnu::always_inline]] inline V exp2_of_fraction(const V& f, const MultiplyAdd& multiply_add) {
  return multiply_add(exp2_slope(f, multiply_add), f, V(1.0f));
}

/// tanh x = m / (m + 2) with m = e^2x − 1 = 2^n · (2^f − 1) + (2^n − 1), of 2^n (`power`) and f: nothing
/// cancels, near 0 neither.
template <class V, class MultiplyAdd>
[[gnu::always_inline]] inline V tanh_of_parts(const V& power, const V& f, const MultiplyAdd& multiply_add) {
  const V m = multiply_add(power, f * exp2_slope(f, multiply_add), power - V(1.0f));
  return m / (m + V(2.0f));
}
inline constexpr float tanh_end = 10.0f;             ///< beyond it ±1 is the nearest float
inline constexpr float twice_log2_e = 2.885390082f;  ///< of n + f = 2x / ln 2

/// Added to a float of magnitude up to 2²², leaves the nearest integer in the low bits of the sum.
inline constexpr float round_shift = 12582912.0f;  // 1.5 · 2²³

/// e^x = 2^n · 2^f with n = x / ln 2 rounded. No branch, no table and no call, so that compilers make vector
/// code of loops around it.
inline float exponential_on_host(float x) {
  constexpr float log2_e = 1.442695041f;
  constexpr float ln_2 = 0.693145751953125f, ln_2_rest = 1.428606820e-6f;  // n · ln_2 is exact
  constexpr float least = -87.33654022f, most = 88.72283173f;  // 2⁻¹²⁶ ≤ e^x, e^x < 2¹²⁸
  const float shifted = x * log2_e + round_shift;
  const float n = shifted - round_shift;
  const float f = ((x - n * ln_2) - n * ln_2_rest) * log2_e;
  const float p = exp2_of_fraction(f, [](float a, float b, float c) { return a * b + c; });
  float y =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23));
  y = x < least ? 0.0f : y;
  y = x > most ? std::numeric_limits<float>::infinity() : y;
  return x == x ? y : x;
}

/// Without branch, table or call, as exponential_on_host.
inline float tanh_on_host(float x) {
  float bounded = x < -tanh_end ? -tanh_end : x;
  bounded = bounded > tanh_end ? tanh_end : bounded;
  const float scaled = bounded * twice_log2_e, shifted = scaled + round_shift,
              f = scaled - (shifted - round_shift);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(1.0f) +
                                           (std::bit_cast<std::uint32_t>(shifted) << 23));
  return tanh_of_parts(power, f, [](float a, float b, float c) { return a * b + c; });
}

}  // namespace detail

/// e^x for the inner loops of kernels: on a device its own function, on the host one that becomes vector
/// code, within 1.5 units in the last place (every float was tried) and 0 where e^x is below 2⁻¹²⁶.
/// Infinities and NaN as of std::exp.
KOKKOS_FORCEINLINE_FUNCTION float exponential(float x) {
  KOKKOS_IF_ON_DEVICE((return Kokkos::exp(x);))
  KOKKOS_IF_ON_HOST((return detail::exponential_on_host(x);))
}

/// tanh x likewise: on the host within 5 units in the last place, NaN for NaN.
KOKKOS_FORCEINLINE_FUNCTION float hyperbolic_tangent(float x) {
  KOKKOS_IF_ON_DEVICE((return Kokkos::tanh(x);))
  KOKKOS_IF_ON_HOST((return detail::tanh_on_host(x);))
}

}  // namespace annulus
