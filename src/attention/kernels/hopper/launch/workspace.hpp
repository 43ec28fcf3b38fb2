#pragma once

#include <algorithm>
#include <cstddef>

#include "attention/kernels/hopper/launch/head_sections.hpp"
#include "attention/kernels/hopper/launch/launch_options.hpp"
#include "attention/kernels/hopper/launch/tile_choice.hpp"
#include "attention/kernels/hopper/schedule/tile_sides.hpp"

/// Device memory that launches work in: tables, counters, LSE and D. Whoever allocates it and whoever
/// predicts it (attention/kernels/table_memory.hpp) ask the same functions.
namespace annulus::attention::hopper {

template <class Tile>
TileSides forward_sides(const PositionMap& queries, const PositionMap& keys, const ListedKeys& listed,
                        const DilationClasses& classes) {
  return {queries, keys, Tile::q_rows, Tile::box_rows, true, classes, listed};
}

/// Bytes of device memory that a launch needs until it is done on its stream, starting at a multiple of 256.
/// `heads`: batch × heads. `small`: small_tiles().
template <int head_dim>
std::size_t forward_workspace(const MaskRule& mask, const PositionMap& queries, const PositionMap& keys,
                              const ListedKeys& listed, const DilationClasses& classes, SmallTiles small) {
  return with_forward_tile<head_dim>(mask, small, [&]<class Tile>(Tile, auto) {
    return TableMemory(nullptr, forward_sides<Tile>(queries, keys, listed, classes).size(mask, 0)).bytes;
  });
}

template <class Tile>
TileSides backward_sides(const PositionMap& queries, const PositionMap& keys, const ListedKeys& listed,
                         const DilationClasses& classes) {
  return {keys, queries, Tile::kv_rows, Tile::q_rows, false, classes, listed};
}

/// Bytes of LSE and D for TMA. `heads`: batch × heads.
template <class Tile>
std::size_t statistics_bytes(const TileTablesSize& size, int heads) {
  return static_cast<std::size_t>(heads * size.classes * size.other_tiles) * 2 * Tile::statistics_bytes;
}

template <int head_dim>
std::size_t backward_workspace(const MaskRule& mask, const PositionMap& queries, const PositionMap& keys,
                               const ListedKeys& listed, const DilationClasses& classes, int heads,
                               const LaunchOptions& options, SmallTiles small) {
  return with_key_tile<head_dim>(mask, small, [&]<class Tile>(Tile) {
    const TileSides sides = backward_sides<Tile>(queries, keys, listed, classes);
    const int semaphore_heads = Tile::has_dq && options.deterministic ? heads : 0;
    const TileTablesSize size = sides.size(mask, semaphore_heads);
    const std::size_t bytes = TableMemory(nullptr, size).bytes + statistics_bytes<Tile>(size, heads);
    if (Tile::has_dq) return bytes;
    return with_query_tile<head_dim>(mask, small, [&]<class QueryTile>(QueryTile, auto) {
      const TileTablesSize of_dq = forward_sides<QueryTile>(queries, keys, listed, classes).size(mask, 0);
      return std::max(bytes, TableMemory(nullptr, of_dq).bytes);
    });
  });
}

/// Bytes that the launches of a pass need one after the other (for_each_section). No array is read: q, k, v,
/// lists and listed keys may be addresses that nobody can.
template <class T>
std::size_t forward_workspace(const gpu::Input<T>& in, const DilationClasses& classes) {
  const gpu::Input<T> part = largest_section(in).of(in);
  return with_tiles(part, [&](auto columns, auto) {
    return forward_workspace<columns>(part.mask, part.q_positions, part.kv_positions, ListedKeys::of(part),
                                      classes, small_tiles(part));
  });
}
template <class T>
std::size_t backward_workspace(const gpu::Input<T>& in, const DilationClasses& classes,
                               const LaunchOptions& options) {
  const gpu::Input<T> part = largest_section(in).of(in);
  return with_tiles(part, [&](auto columns, auto) {
    return backward_workspace<columns>(part.mask, part.q_positions, part.kv_positions, ListedKeys::of(part),
                                       classes, part.batch * part.heads, options, small_tiles(part));
  });
}

}  // namespace annulus::attention::hopper
