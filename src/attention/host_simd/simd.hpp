#pragma once

#include <Kokkos_SIMD.hpp>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <annulus/core/tensor.hpp>

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

/// 2^x, within 1.02 units in the last place (every float was tried) for −126 ≤ x < 128; 0 below −126 (so for
/// −∞ too), NaN for NaN; what it gives from 128 on is unspecified. No branch, no table.
///
/// x = n + f with n the nearest integer. Adding 1.5·2²³ leaves n in the low bits of the sum; 2^f on [−1/2,
/// 1/2] is a minimax polynomial (Remez, relative error 2.6e-9, value 1 at 0); n is added to its exponent.
[[gnu::always_inline]] inline Vector exp2(const Vector& x) {
  // Unsigned without SIMD, where overflow (of results that are discarded) would be undefined.
  using Bits =
      Kokkos::Experimental::basic_simd<std::conditional_t<width == 1, std::uint32_t, std::int32_t>, Abi>;
  const Vector shift(12582912.0f);
  const Vector shifted = x + shift;
  const Vector f = x - (shifted - shift);
  Vector p(1.559467782e-4f);
  p = Kokkos::fma(p, f, Vector(1.340664341e-3f));
  p = Kokkos::fma(p, f, Vector(9.617692791e-3f));
  p = Kokkos::fma(p, f, Vector(5.550310388e-2f));
  p = Kokkos::fma(p, f, Vector(2.402265221e-1f));
  p = Kokkos::fma(p, f, Vector(6.931472421e-1f));
  p = Kokkos::fma(p, f, Vector(1.0f));
  const Bits bits = std::bit_cast<Bits>(p) + (std::bit_cast<Bits>(shifted) << 23);
  return Kokkos::Experimental::condition(x < Vector(-126.0f), Vector(0.0f), std::bit_cast<Vector>(bits));
}

}  // namespace annulus::attention::host_simd
