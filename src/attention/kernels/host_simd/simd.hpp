#pragma once

#include <Kokkos_SIMD.hpp>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/exponential.hpp"

/// The vector type of the host kernels and the few operations that they need of it. Host code only.
namespace annulus::attention::host_simd {

// The ABI is asked for the host by name: simd<float> means the default execution space, which is scalar under
// CUDA.
using Abi = Kokkos::Experimental::simd_abi::Impl::native_abi<float, 0, HostExec>;
using Vector = Kokkos::Experimental::basic_simd<float, Abi>;

/// Floats of a vector: 16 with AVX-512, 8 with AVX2, 4 with NEON, 1 without SIMD.
inline constexpr int width = static_cast<int>(Vector::size());

[[gnu::always_inline]] inline Vector load(const float* from) {
  return Kokkos::Experimental::simd_unchecked_load<Vector>(from, Kokkos::Experimental::simd_flag_default);
}
[[gnu::always_inline]] inline void store(const Vector& value, float* to) {
  Kokkos::Experimental::simd_unchecked_store(value, to, Kokkos::Experimental::simd_flag_default);
}

/// body(integral_constant 0), …, body(integral_constant N − 1): a loop that is unrolled by construction, so
/// that arrays of vectors live in registers with every compiler.
template <int N, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

/// Parts of 2^x = 2^n · 2^f with n the nearest integer to x, |x| < 2²²: f, and n in the low bits of
/// `shifted`.
struct Exp2Parts {
  Vector f, shifted;
  [[gnu::always_inline]] explicit Exp2Parts(const Vector& x) : f(x), shifted(x) {
    const Vector shift(annulus::detail::round_shift);
    shifted = x + shift;
    f = x - (shifted - shift);
  }
  /// v · 2^n, of v and a result that are normal numbers.
  [[gnu::always_inline]] Vector scaled(const Vector& v) const {
    // Unsigned without SIMD, where overflow (of results that are discarded) would be undefined.
    using Bits =
        Kokkos::Experimental::basic_simd<std::conditional_t<width == 1, std::uint32_t, std::int32_t>, Abi>;
    return std::bit_cast<Vector>(std::bit_cast<Bits>(v) + (std::bit_cast<Bits>(shifted) << 23));
  }
};

[[gnu::always_inline]] inline Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
  return Kokkos::fma(a, b, c);
}

/// 2^x, within 1.02 units in the last place (every float was tried) for −126 ≤ x < 128; 0 below −126 (so for
/// −∞ too), NaN for NaN; what it gives from 128 on is unspecified. No branch, no table.
[[gnu::always_inline]] inline Vector exp2(const Vector& x) {
  const Exp2Parts parts(x);
  const Vector power = parts.scaled(annulus::detail::exp2_of_fraction(parts.f, multiply_add));
  return Kokkos::Experimental::condition(x < Vector(-126.0f), Vector(0.0f), power);
}

/// tanh x; NaN for NaN. No branch, no table.
[[gnu::always_inline]] inline Vector tanh(const Vector& x) {
  // The second argument is what Kokkos gives when it is NaN.
  const Vector end(annulus::detail::tanh_end), bounded = Kokkos::max(-end, Kokkos::min(end, x));
  const Exp2Parts parts(bounded * Vector(annulus::detail::twice_log2_e));
  return annulus::detail::tanh_of_parts(parts.scaled(Vector(1.0f)), parts.f, multiply_add);
}

}  // namespace annulus::attention::host_simd
