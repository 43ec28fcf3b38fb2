#pragma once

#include <annulus/attention/comm/communicator.hpp>

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/query_blocks/top_blocks.hpp"

namespace annulus::sparsity {

/// A selection of blocks for each query, `lists` of each sequence, in which no query has any yet.
template <class Exec, class T>
Selection<Exec> selection_of_queries(const Exec& exec, const PatternInputs<Exec, T>& in, const TopBlocks& of,
                                     int lists) {
  Selection<Exec> made;
  made.tokens = in.tokens;
  made.documents = in.documents;
  made.batch = in.q.extent_int(0);
  made.heads = in.q.extent_int(1);
  made.lists = lists;
  made.block = of.block;
  made.pattern_rows = PatternRows::of_query;
  made.blocks = Owned<Array3<std::uint32_t, Exec>>::zeroed(exec, MemoryCategory::activations,
                                                           "annulus::sparsity::blocks", made.all_lists(),
                                                           in.tokens, of.words());
  return made;
}

/// Brings the bits of all queries to all ranks: those of a query are set by the rank that has it, and clear
/// elsewhere. Collective.
template <class Exec>
void share_bits(const Exec& exec, comm::Communicator& communicator, const Selection<Exec>& made) {
  const Array3<std::uint32_t, Exec>& bits = made.blocks.view();
  communicator.all_reduce(Queue(exec), bits.data(), bits.size(), DType::i32, comm::ReduceOp::sum);
}

}  // namespace annulus::sparsity
