#pragma once

#include <cstdint>
#include <vector>

#include <annulus/attention/sequence/position_map.hpp>

namespace annulus::test {

/// The positions of all rows.
inline std::vector<std::int64_t> positions(const PositionMap& map) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < map.count; ++i) values.push_back(map(i));
  return values;
}

}  // namespace annulus::test
