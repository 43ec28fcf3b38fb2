#pragma once

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/query_blocks/top_blocks.hpp"

namespace annulus::sparsity {

/// A selection of blocks for each query in which no query has any yet, of one without blocks.
template <class Exec>
Selection<Exec> selection_of_queries(const Exec& exec, Selection<Exec> made, const TopBlocks& of) {
  made.blocks = Owned<Array3<std::uint32_t, Exec>>::zeroed(exec, MemoryCategory::activations,
                                                           "annulus::sparsity::blocks", made.all_lists(),
                                                           made.tokens, of.words());
  return made;
}
template <class Exec, class T>
Selection<Exec> selection_of_queries(const Exec& exec, const PatternInputs<Exec, T>& in, const TopBlocks& of,
                                     int lists) {
  return selection_of_queries<Exec>(exec, in.selection(lists, PatternRows::of_query, of.block), of);
}

}  // namespace annulus::sparsity
