#pragma once

#include <cstdint>

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/division.hpp>

namespace annulus {

/// Where the keys of a block stand: where a position map says, or, with `listed`, at positions of their own
/// (the columns that a head chose, gathered from all ranks). Has what masks ask of a PositionMap.
struct KeyPositions {
  PositionMap map;
  /// map.count increasing positions, borrowed; those from the end of the sequence on are no keys. Null: those
  /// of `map`.
  const std::int64_t* listed = nullptr;

  /// Global position of row i.
  ANNULUS_FUNCTION constexpr std::int64_t operator()(std::int64_t i) const {
    return listed == nullptr ? map(i) : listed[map.first + i];
  }
  ANNULUS_FUNCTION constexpr std::int64_t count() const { return map.count; }
  ANNULUS_FUNCTION constexpr bool empty() const { return map.empty(); }
  ANNULUS_FUNCTION constexpr std::int64_t front() const { return (*this)(0); }
  ANNULUS_FUNCTION constexpr std::int64_t back() const { return (*this)(map.count - 1); }

  /// Rows [rows.begin, rows.end) as positions of their own.
  ANNULUS_FUNCTION constexpr KeyPositions slice(RowRange rows) const { return {map.slice(rows), listed}; }

  /// Number of rows whose position is below `position`.
  ANNULUS_FUNCTION constexpr std::int64_t rows_below(std::int64_t position) const {
    if (listed == nullptr) return map.rows_below(position);
    std::int64_t low = 0, high = map.count;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (listed[map.first + middle] < position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /// `count` listed positions.
  ANNULUS_FUNCTION static constexpr KeyPositions of_list(const std::int64_t* positions, std::int64_t count) {
    return {PositionMap{.count = count}, positions};
  }
};

}  // namespace annulus
