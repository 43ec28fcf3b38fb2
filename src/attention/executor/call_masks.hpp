#pragma once

#include <algorithm>
#include <cstdint>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sequence/mask_rule.hpp>

#include "attention/executor/proof/program.hpp"

/// Block lists of heads in the masks of local calls.
namespace annulus::executor {

/// `rule` with the lists of `heads` heads of queries, of all sequences that `blocks` are of.
inline MaskRule with_lists(MaskRule rule, const BlockLists& blocks, std::int64_t heads) {
  if (blocks.empty()) return rule;
  rule.block_size = blocks.block_size;
  rule.block_row_starts = blocks.block_row_starts;
  rule.block_columns = blocks.block_columns;
  rule.query_blocks = blocks.query_blocks;
  rule.block_lists = heads / blocks.heads_of_list;
  rule.heads_of_list = blocks.heads_of_list;
  return rule;
}

/// The mask of a call, with the block lists of its heads, which follow one another. `heads`: of queries, of a
/// sequence.
inline MaskRule mask_of_call(const MaskRule& mask, int heads, const LocalCall& c) {
  if (!mask.lists_of_heads()) return mask;
  const std::int64_t first = c.first_batch * heads + c.first_head, here = c.q.batch * c.q.heads;
  MaskRule rule = mask.from_list(first / mask.heads_of_list);
  // Some of the heads of one list, or all heads of some lists: calls have whole kv heads, or a part of one.
  rule.heads_of_list = std::min(rule.heads_of_list, here);
  rule.block_lists = here / rule.heads_of_list;
  return rule;
}

/// Calls run(call) for the calls of kernels that `c` stands for: one, or one for each sequence, because the
/// lists of some heads of several sequences lie apart.
template <class Run>
void for_each_kernel_call(const MaskRule& mask, int heads, const LocalCall& c, const Run& run) {
  if (!mask.lists_of_heads() || c.q.heads == heads) return run(c);
  for (std::int64_t b = 0; b < c.q.batch; ++b) run(sequence_of(c, b));
}

}  // namespace annulus::executor
