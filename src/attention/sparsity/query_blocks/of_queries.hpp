#pragma once

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/query_blocks/top_blocks.hpp"

namespace annulus::sparsity {

/// A selection of blocks for each query, `lists` of each sequence, in which no query has any yet.
template <class Exec, class T>
Selection<Exec> selection_of_queries(const Exec& exec, const PatternInputs<Exec, T>& in, const TopBlocks& of,
                                     int lists) {
  Selection<Exec> made = in.selection(lists, PatternRows::of_query, of.block);
  made.blocks = Owned<Array3<std::uint32_t, Exec>>::zeroed(exec, MemoryCategory::activations,
                                                           "annulus::sparsity::blocks", made.all_lists(),
                                                           in.tokens, of.words());
  return made;
}

}  // namespace annulus::sparsity
