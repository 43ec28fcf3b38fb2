#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include <annulus/base/kokkos/memory_use.hpp>

namespace annulus::parameter_sharding {

inline constexpr std::int64_t fp32_bytes = 4;

inline std::int64_t& at(MemoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

inline std::int64_t total(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

inline void add(MemoryBytes& to, const MemoryBytes& more) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
}

inline void take_most(MemoryBytes& to, const MemoryBytes& other) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], other[i]);
}

}  // namespace annulus::parameter_sharding
