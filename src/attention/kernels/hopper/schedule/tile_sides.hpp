#pragma once

#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/schedule/listed_keys.hpp"
#include "attention/kernels/hopper/schedule/workspace.hpp"

namespace annulus::attention::hopper {

/// Whose tiles own, and whose are visited.
struct TileSides {
  PositionMap own, other;
  int own_tile, other_tile;  ///< rows of a tile
  bool own_is_query;
  DilationClasses classes;
  ListedKeys listed;  ///< on the side of the keys, in the place of its position map

  ANNULUS_FUNCTION bool own_listed() const { return listed.some() && !own_is_query; }
  ANNULUS_FUNCTION bool other_listed() const { return listed.some() && own_is_query; }
  /// Where rows stand; where keys are listed, those that head `head` of batch × heads reads.
  ANNULUS_FUNCTION KeyPositions own_of(std::int64_t head) const {
    return own_is_query ? KeyPositions{own, nullptr} : listed.of_head(own, head);
  }
  ANNULUS_FUNCTION KeyPositions other_of(std::int64_t head) const {
    return own_is_query ? listed.of_head(other, head) : KeyPositions{other, nullptr};
  }

  /// The class of the other side that sees `own_class`.
  ANNULUS_FUNCTION int other_class(int own_class) const {
    return own_is_query ? classes.keys_of(own_class) : classes.queries_of(own_class);
  }
  /// `adds`: own tiles add to gradients of the other side.
  TileTablesSize size(const MaskRule& mask, bool adds, std::int64_t heads_with_semaphores) const;
};

inline TileTablesSize TileSides::size(const MaskRule& mask, bool adds,
                                      std::int64_t heads_with_semaphores) const {
  const std::int64_t own_rows = classes.most_rows(own.count), other_rows = classes.most_rows(other.count);
  const std::int64_t other_tiles = ceil_divide(other_rows, std::int64_t{other_tile});
  const BitsSize bits =
      BitsSize::of(mask, own_is_query, own, own_listed(), other, other_listed(), other_tiles * other_tile);
  return {classes.count,
          own_rows,
          ceil_divide(own_rows, std::int64_t{own_tile}),
          other_tiles,
          bits,
          mask.block_row_starts != nullptr ? mask.block_rows() : 0,
          mask.has_blocks() ? mask.block_lists : 1,
          mask.lists_of_heads() ? mask.heads_of_list : 0,
          listed.some(),
          own_listed() || (mask.query_blocks != nullptr && own_is_query),
          mask.has_blocks() && (adds || !bits.of_32_rows),
          heads_with_semaphores};
}

}  // namespace annulus::attention::hopper
