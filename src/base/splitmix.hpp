#pragma once

#include <cstdint>

#include <annulus/base/division.hpp>

namespace annulus {

/// Numbers this far apart give SplitMix64 its sequence: 2^64 over the golden ratio.
inline constexpr std::uint64_t splitmix_step = 0x9e3779b97f4a7c15u;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of
/// `x`.
ANNULUS_FUNCTION constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Number `x` of SplitMix64, as a hash: unlike mix_bits, not 0 for 0.
ANNULUS_FUNCTION constexpr std::uint64_t splitmix64(std::uint64_t x) {
  return mix_bits(x + splitmix_step);
}

/// About normally distributed (mean 0, variance 1), of 64 random bits: the sum of four uniform 16-bit
/// numbers, between −3.5 and 3.5.
ANNULUS_FUNCTION constexpr float near_normal(std::uint64_t bits) {
  std::int32_t sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<std::int32_t>((bits >> (16 * part)) & 0xffffu);
  constexpr float scale = 2.6429e-5f;  // 1 / √(4 · (2^32 − 1) / 12)
  return (static_cast<float>(sum) - 131070.0f) * scale;
}

}  // namespace annulus
