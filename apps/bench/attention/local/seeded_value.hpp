#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/base/splitmix.hpp>
#include <annulus/plan/plan.hpp>

namespace annulus::bench {

/// About normally distributed (mean 0, variance 1), a pure function of its arguments: every number of ranks,
/// every layout and every device has the same problem. `place` is a global position, or a token id for
/// embeddings.
KOKKOS_INLINE_FUNCTION float seeded_value(std::uint64_t seed, plan::Tensor tensor, std::int64_t batch,
                                          std::int64_t head, std::int64_t place, int dim) {
  const std::uint64_t numbers[] = {static_cast<std::uint64_t>(tensor), static_cast<std::uint64_t>(batch),
                                   static_cast<std::uint64_t>(head), static_cast<std::uint64_t>(place),
                                   static_cast<std::uint64_t>(dim)};
  std::uint64_t bits = splitmix64(seed);
  for (const std::uint64_t number : numbers) bits = mix_bits(bits + splitmix_step * (number + 1));
  // The sum of four uniform 16-bit numbers, brought to mean 0 and variance 1.
  std::int32_t sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<std::int32_t>((bits >> (16 * part)) & 0xffffu);
  constexpr float scale = 2.6429e-5f;  // 1 / √(4 · (2^32 − 1) / 12)
  return (static_cast<float>(sum) - 131070.0f) * scale;
}

}  // namespace annulus::bench
