#pragma once

#include <annulus/base/division.hpp>
#include <cstdint>

namespace annulus::attention {

/// Consecutive rows of keys, which the queries of one group see.
struct KeyTile {
  std::int64_t first = 0;  ///< row
  std::int32_t rows = 0, group = 0;

  static constexpr std::int64_t most_rows = 128;
};

/// The tiles that keys fall into: listed, or all keys one after another, of one group.
struct KeyTiles {
  const KeyTile* listed = nullptr;  ///< in memory of the execution space
  std::int64_t count = 0;

  ANNULUS_FUNCTION KeyTile tile(std::int64_t i, std::int64_t keys) const {
    if (listed != nullptr) return listed[i];
    const std::int64_t first = i * KeyTile::most_rows, rest = keys - first;
    return {first, static_cast<std::int32_t>(rest < KeyTile::most_rows ? rest : KeyTile::most_rows), 0};
  }
  static constexpr KeyTiles of(std::int64_t keys) { return {nullptr, ceil_divide(keys, KeyTile::most_rows)}; }
};

}  // namespace annulus::attention
