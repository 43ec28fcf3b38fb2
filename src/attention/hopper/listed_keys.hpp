#pragma once

#include <annulus/base/division.hpp>
#include <annulus/sequence/key_positions.hpp>
#include <annulus/sequence/mask_rule.hpp>

/// Keys at listed positions, and how block lists are stored as bits.
namespace annulus::attention::hopper {

/// Keys one by one, in the place of their position map (Operands::kv_listed).
struct ListedKeys {
  const std::int64_t* positions = nullptr;  ///< (batch × kv heads, kv rows); null: there are none
  int group = 1;                            ///< heads of queries that read a kv head

  ANNULUS_FUNCTION bool some() const { return positions != nullptr; }
  template <class Input>
  static ListedKeys of(const Input& in) {
    return {in.kv_listed, in.heads / in.kv_heads};
  }
  /// Where the keys of a head of batch × heads of queries stand. `map`: the position map, or how many are
  /// listed.
  ANNULUS_FUNCTION KeyPositions of_head(const PositionMap& map, std::int64_t head) const {
    if (!some()) return {map, nullptr};
    return KeyPositions::of_list(positions + head / group * map.count, map.count);
  }
};

/// Whether each 32 rows, from the first one on, lie in one block of `block_size` positions.
inline bool words_lie_in_blocks(const PositionMap& map, std::int64_t block_size) {
  const auto even = [](std::int64_t number) { return number % 32 == 0; };
  const bool one_block = map.first / map.block == (map.first + map.count - 1) / map.block;
  return map.lo == 1 && even(block_size) && even(map.base) && even(map.first) &&
         (one_block || (even(map.block) && even(map.hi)));
}

/// How large the bits of block lists are that all heads have of their own, or one for all heads.
struct BitsSize {
  std::int64_t rows = 0, words_of_row = 0;  ///< of a list
  bool of_32_rows = false;                  ///< a bit stands for 32 rows of the other side (MaskBits)

  /// `other_rows`: with those that fill up the last tile.
  static BitsSize of(const MaskRule& mask, const PositionMap& own, bool own_listed, const PositionMap& other,
                     bool other_listed, std::int64_t other_rows) {
    BitsSize size;
    if (mask.block_row_starts == nullptr) return size;
    size.rows = own_listed ? own.count : own.back() / mask.block_size - own.front() / mask.block_size + 1;
    size.of_32_rows = mask.block_lists > 1 && !other_listed && words_lie_in_blocks(other, mask.block_size);
    size.words_of_row = ceil_divide(other_rows, std::int64_t{size.of_32_rows ? 1024 : 32});
    return size;
  }
};

}  // namespace annulus::attention::hopper
