#pragma once

#include "attention/kernels/hopper/backward/shared_memory.hpp"

namespace annulus::attention::hopper {

/// Calls visit() as for_each_query_tile does, where heads have block lists of their own: heads come one after
/// the other.
template <class Visitor>
__device__ __forceinline__ void for_each_listed_query_tile(const BackwardParameters& p, const WorkTile& work,
                                                           int kv_head, Visitor&& visit) {
  const auto loop_of = [&](int i) {
    return *reinterpret_cast<const int4*>(
        &p.tile_tables.loops[p.tile_tables.table_of(work.head * p.group + i) * p.order.tiles + work.tile]);
  };
  int last_loop = p.group - 1;
  while (last_loop > 0 && loop_of(last_loop).y == 0) --last_loop;
  for (int i = 0; i <= last_loop; ++i) {
    const int4 loop = loop_of(i);
    TileIterator<true> cursor(p.tile_tables.runs + loop.x, loop.y);
    while (cursor.next()) visit(cursor, kv_head * p.group + i, i == last_loop && !cursor.more());
  }
}

/// The query tiles of all heads that read the keys of `work`, in the order in which all warps of a block go
/// through them: calls visit(cursor, head, last). Heads of a group take turns tile by tile, or come one after
/// the other (BackwardParameters::head_by_head). `lists`: there is a block list.
template <bool lists, class Visitor>
__device__ __forceinline__ void for_each_query_tile(const BackwardParameters& p, const WorkTile& work,
                                                    int kv_head, Visitor&& visit) {
  if constexpr (lists) {
    if (p.lists_of_heads && p.group > 1) return for_each_listed_query_tile(p, work, kv_head, visit);
  }
  const int loops = p.head_by_head ? p.group : 1, heads_of_loop = p.head_by_head ? 1 : p.group;
  for (int loop = 0; loop < loops; ++loop) {
    TileIterator<true> cursor(p.tile_tables.runs + work.first_run, work.runs);
    while (cursor.next()) {
      for (int i = 0; i < heads_of_loop; ++i) {
        const bool last = loop + 1 == loops && i + 1 == heads_of_loop && !cursor.more();
        visit(cursor, kv_head * p.group + loop + i, last);
      }
    }
  }
}

}  // namespace annulus::attention::hopper
