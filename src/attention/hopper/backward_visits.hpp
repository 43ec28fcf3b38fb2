#pragma once

#include "attention/hopper/backward_memory.hpp"

namespace annulus::attention::hopper {

/// The query tiles of all heads that read the keys of `work`, in the order in which all warps of a block go
/// through them: calls visit(cursor, head, last). Heads of a group take turns tile by tile, or come one after
/// the other (BackwardParameters::head_by_head).
template <class Visitor>
__device__ __forceinline__ void for_each_visit(const BackwardParameters& p, const Work& work, int kv_head,
                                               Visitor&& visit) {
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
