#pragma once

#include "attention/hopper/backward_memory.hpp"

namespace annulus::attention::hopper {

/// The same where heads have block lists of their own: heads come one after the other.
template <class Visitor>
__device__ __forceinline__ void for_each_listed_visit(const BackwardParameters& p, const Work& work,
                                                      int kv_head, Visitor&& visit) {
  const auto walk_of = [&](int i) {
    return *reinterpret_cast<const int4*>(
        &p.walk.walks[p.walk.table_of(work.head * p.group + i) * p.order.tiles + work.tile]);
  };
  int last_walk = p.group - 1;
  while (last_walk > 0 && walk_of(last_walk).y == 0) --last_walk;
  for (int i = 0; i <= last_walk; ++i) {
    const int4 walk = walk_of(i);
    Cursor<true> cursor(p.walk.runs + walk.x, walk.y);
    while (cursor.next()) visit(cursor, kv_head * p.group + i, i == last_walk && !cursor.more());
  }
}

/// The query tiles of all heads that read the keys of `work`, in the order in which all warps of a block go
/// through them: calls visit(cursor, head, last). Heads of a group take turns tile by tile, or come one after
/// the other (BackwardParameters::head_by_head). `lists`: there is a block list.
template <bool lists, class Visitor>
__device__ __forceinline__ void for_each_visit(const BackwardParameters& p, const Work& work, int kv_head,
                                               Visitor&& visit) {
  if constexpr (lists) {
    if (p.lists_of_heads) return for_each_listed_visit(p, work, kv_head, visit);
  }
  const int walks = p.head_by_head ? p.group : 1, heads_of_walk = p.head_by_head ? 1 : p.group;
  for (int walk = 0; walk < walks; ++walk) {
    Cursor<true> cursor(p.walk.runs + work.first_run, work.runs);
    while (cursor.next()) {
      for (int i = 0; i < heads_of_walk; ++i) {
        const bool last = walk + 1 == walks && i + 1 == heads_of_walk && !cursor.more();
        visit(cursor, kv_head * p.group + walk + i, last);
      }
    }
  }
}

}  // namespace annulus::attention::hopper
