#pragma once

#include <cstdint>
#include <initializer_list>

#include <annulus/attention/plan/plan.hpp>

#include "base/splitmix.hpp"

namespace annulus::plan::validation {

/// Fingerprint of numbers, in this order.
constexpr std::uint64_t fingerprint(std::initializer_list<std::int64_t> numbers) {
  std::uint64_t state = 0;
  for (const std::int64_t number : numbers) state = splitmix64(state ^ static_cast<std::uint64_t>(number));
  return state;
}

constexpr std::int64_t packed(HeadRange heads) {
  return (std::int64_t{heads.begin} << 32) + heads.end;
}

}  // namespace annulus::plan::validation
