#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/base/division.hpp>

/// How large block lists are as bits (MaskBits).
namespace annulus::attention::hopper {

/// Whether each 32 rows, from the first one on, lie in one block of `block_size` positions.
inline bool words_lie_in_blocks(const PositionMap& map, std::int64_t block_size) {
  if (map.runs != nullptr) return false;
  const auto aligned = [](std::int64_t number) { return number % 32 == 0; };
  const bool one_block = map.first / map.block == (map.first + map.count - 1) / map.block;
  return map.lo == 1 && aligned(block_size) && aligned(map.base) && aligned(map.first) &&
         (one_block || (aligned(map.block) && aligned(map.hi)));
}

/// The bits of one block list.
struct BitsSize {
  std::int64_t rows = 0, words_of_row = 0;
  bool of_32_rows = false;  ///< a bit stands for 32 rows of the other side

  /// `other_rows`: with those that fill up the last tile.
  static BitsSize of(const MaskRule& mask, const PositionMap& own, bool own_listed, const PositionMap& other,
                     bool other_listed, std::int64_t other_rows) {
    BitsSize size;
    if (mask.block_row_starts == nullptr) return size;
    size.rows = own_listed ? own.count : own.back() / mask.block_size - own.front() / mask.block_size + 1;
    size.of_32_rows = mask.lists_of_heads() && !other_listed && words_lie_in_blocks(other, mask.block_size);
    size.words_of_row = ceil_divide(other_rows, std::int64_t{size.of_32_rows ? 1024 : 32});
    return size;
  }
};

}  // namespace annulus::attention::hopper
