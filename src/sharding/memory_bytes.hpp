#pragma once

#include <cstdint>

#include <annulus/core/memory_use.hpp>

namespace annulus::sharding {

inline constexpr std::int64_t fp32_bytes = 4;

inline std::int64_t& at(MemoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

}  // namespace annulus::sharding
