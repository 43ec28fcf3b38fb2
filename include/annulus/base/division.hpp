#pragma once

#include <type_traits>

/// Marks a function that host and device code both call. It stands here, and not behind Kokkos' own macro,
/// because the pure C++20 part of the library (topology, sequence, plan) is compiled without Kokkos.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANNULUS_FUNCTION __host__ __device__
#else
#define ANNULUS_FUNCTION
#endif

namespace annulus {

/// a / b, rounded towards minus infinity. b > 0.
template <class Integer>
ANNULUS_FUNCTION constexpr Integer floor_divide(Integer a, std::type_identity_t<Integer> b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// a / b, rounded towards plus infinity: how many pieces of b elements hold a. b > 0.
template <class Integer>
ANNULUS_FUNCTION constexpr Integer ceil_divide(Integer a, std::type_identity_t<Integer> b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

/// The least multiple of `multiple` that is not below `value`. multiple > 0.
template <class Integer>
ANNULUS_FUNCTION constexpr Integer round_up(Integer value, std::type_identity_t<Integer> multiple) {
  return ceil_divide(value, multiple) * multiple;
}

}  // namespace annulus
