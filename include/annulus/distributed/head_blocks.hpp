#pragma once

#include <cstdint>

namespace annulus::distributed {

/// Which blocks of keys each query head attends to, in memory of the execution space: what dynamic sparsity
/// leaves of a plan's mask, chosen while a step runs. The plan says nothing of it: all that the mask wants
/// travels, and kernels compute what is listed.
struct HeadBlocks {
  std::int64_t block_size = 0;  ///< tokens, in global positions; 0: no lists, the mask alone
  /// (batch, heads, block rows + 1): where the lists of the block rows of a head begin and end in `columns`;
  /// heads may share columns.
  const std::int64_t* row_starts = nullptr;
  const std::int64_t* columns = nullptr;  ///< block columns, increasing in a row
  /// (Attention::steps(pass)): the unmasked (query, key) pairs of the local kernels of a round of the plan,
  /// over all heads, are added at the number of its first step (plan::Plan::round). Null: nobody counts.
  std::int64_t* pairs = nullptr;

  bool empty() const { return block_size == 0; }
};

}  // namespace annulus::distributed
