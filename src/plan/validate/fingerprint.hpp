#pragma once

#include <cstdint>
#include <initializer_list>

#include <annulus/plan/plan.hpp>

namespace annulus::plan::validation {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of the
/// number.
constexpr std::uint64_t scramble(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return number ^ (number >> 31);
}

/// Of numbers, in this order.
constexpr std::uint64_t fingerprint(std::initializer_list<std::int64_t> numbers) {
  std::uint64_t state = 0;
  for (const std::int64_t number : numbers) state = scramble(state ^ static_cast<std::uint64_t>(number));
  return state;
}

constexpr std::int64_t packed(HeadRange heads) {
  return (std::int64_t{heads.begin} << 32) + heads.end;
}

}  // namespace annulus::plan::validation
