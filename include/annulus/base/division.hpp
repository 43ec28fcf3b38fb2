#pragma once

#include <annulus/base/device_code.hpp>
#include <type_traits>

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
