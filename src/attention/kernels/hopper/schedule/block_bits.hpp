#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/base/division.hpp>

/// How large block lists, and blocks of each query, are as bits (MaskBits).
namespace annulus::attention::hopper {

/// Whether each 32 rows, from the first one on, lie in one block of `block_size` positions.
inline bool words_lie_in_blocks(const PositionMap& map, std::int64_t block_size) {
  if (map.runs != nullptr) return false;
  const auto aligned = [](std::int64_t number) { return number % 32 == 0; };
  if (map.lo != 1 || !aligned(block_size)) return false;
  const bool consecutive =
      map.hi == map.block || map.first / map.block == (map.first + map.count - 1) / map.block;
  return consecutive ? aligned(map.front())
                     : aligned(map.base) && aligned(map.first) && aligned(map.block) && aligned(map.hi);
}

/// The bits of one block list. Of blocks that each query has (MaskRule::query_blocks): where queries own,
/// each of them has a row of bits; where keys own, each block of keys has one.
struct BitsSize {
  std::int64_t rows = 0, words_of_row = 0;
  bool of_32_rows = false;  ///< a bit stands for 32 rows of the other side

  /// `other_rows`: with those that fill up the last tile.
  static BitsSize of(const MaskRule& mask, bool own_is_query, const PositionMap& own, bool own_listed,
                     const PositionMap& other, bool other_listed, std::int64_t other_rows) {
    BitsSize size;
    if (!mask.has_blocks()) return size;
    const bool of_queries = mask.query_blocks != nullptr;
    size.rows = own_listed || (of_queries && own_is_query)
                    ? own.count
                    : own.back() / mask.block_size - own.front() / mask.block_size + 1;
    size.of_32_rows = mask.lists_of_heads() && !other_listed && (own_is_query || !of_queries) &&
                      words_lie_in_blocks(other, mask.block_size);
    size.words_of_row = ceil_divide(other_rows, std::int64_t{size.of_32_rows ? 1024 : 32});
    return size;
  }
};

}  // namespace annulus::attention::hopper
