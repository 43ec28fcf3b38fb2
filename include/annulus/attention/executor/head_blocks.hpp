#pragma once

#include <cstdint>

namespace annulus::executor {

/// Which blocks of keys each query head attends to, in memory of the execution space: what dynamic sparsity
/// leaves of a plan's mask, chosen while a step runs. The plan says nothing of it: all that the mask wants
/// travels, and kernels compute what is listed.
struct HeadBlocks {
  std::int64_t block_size = 0;     ///< tokens, in global positions; 0: no lists, the mask alone
  std::int64_t heads_of_list = 1;  ///< heads that share a list: 1, or all of a kv head
  /// (batch, heads / heads_of_list, block rows + 1): where block rows of a list begin and end in `columns`;
  /// lists may share columns.
  const std::int64_t* row_starts = nullptr;
  const std::int64_t* columns = nullptr;  ///< block columns, increasing in a row
  /// (Attention::steps(pass)): the unmasked (query, key) pairs of the local kernels of a round of the plan,
  /// over all heads, are added at the number of its first step (plan::Plan::round). Null: nobody counts.
  std::int64_t* pairs = nullptr;

  bool empty() const { return block_size == 0; }
};

}  // namespace annulus::executor
