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

template <class Tile, class T>
TileSides forward_sides(const gpu::Input<T>& in, const DilationClasses& classes) {
  return {in.q_positions, in.kv_positions, Tile::q_rows, Tile::box_rows, true, classes, ListedKeys::of(in)};
}

template <class Tile, class T>
TileSides backward_sides(const gpu::Input<T>& in, const DilationClasses& classes) {
  return {in.kv_positions, in.q_positions, Tile::kv_rows, Tile::q_rows, false, classes, ListedKeys::of(in)};
}

/// Bytes of LSE and D for TMA. `heads`: batch × heads.
template <class Tile>
std::size_t statistics_bytes(const TileTablesSize& size, int heads) {
  return static_cast<std::size_t>(heads * size.classes * size.other_tiles) * 2 * Tile::statistics_bytes;
}

/// Bytes of device memory, starting at a multiple of 256, that the launches of a pass need one after the
/// other (for_each_section) until they are done on their stream. No array is read: q, k, v, lists and listed
/// keys may be addresses that nobody can.
template <class T>
std::size_t forward_workspace(const gpu::Input<T>& in, const DilationClasses& classes) {
  const gpu::Input<T> part = largest_section(in).of(in);
  return with_tiles(part, [&](auto columns, auto) {
    return with_forward_tile<columns>(part, [&]<class Tile>(Tile, auto) {
      return TableMemory(nullptr, forward_sides<Tile>(part, classes).size(part.mask, false, 0)).bytes;
    });
  });
}
template <class T>
std::size_t backward_workspace(const gpu::Input<T>& in, const DilationClasses& classes,
                               const LaunchOptions& options) {
  const gpu::Input<T> part = largest_section(in).of(in);
  const int heads = part.batch * part.heads;
  return with_tiles(part, [&](auto columns, auto) {
    return with_key_tile<columns>(part, [&]<class Tile>(Tile) {
      const int semaphore_heads = Tile::has_dq && options.deterministic ? heads : 0;
      const TileTablesSize size =
          backward_sides<Tile>(part, classes).size(part.mask, Tile::has_dq, semaphore_heads);
      const std::size_t bytes = TableMemory(nullptr, size).bytes + statistics_bytes<Tile>(size, heads);
      if (Tile::has_dq) return bytes;
      return with_query_tile<columns>(part, [&]<class QueryTile>(QueryTile, auto) {
        const TileTablesSize of_dq = forward_sides<QueryTile>(part, classes).size(part.mask, false, 0);
        return std::max(bytes, TableMemory(nullptr, of_dq).bytes);
      });
    });
  });
}

}  // namespace annulus::attention::hopper
