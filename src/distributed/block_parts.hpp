#pragma once

#include <vector>

#include "distributed/block.hpp"

/// Blocks as parts of one array (batch, heads, rows, width).
namespace annulus::distributed {

/// Where a block lies in its array.
struct Box {
  std::int64_t batch, batch_end, head, head_end, row, row_end;
  explicit Box(const Block& block);
};

/// Whether all of `part` lies in `whole`.
bool contains(const Block& whole, const Block& part);

/// Whether the blocks have elements in common. Errs only towards true.
bool overlap(const Block& a, const Block& b);

/// What lies in `whole` and not in `part`, in at most six blocks. The two are parts of one array, or of
/// arrays that do not overlap.
std::vector<Block> without(const Block& whole, const Block& part);
/// The same of several blocks.
std::vector<Block> without(const std::vector<Block>& blocks, const Block& part);

}  // namespace annulus::distributed
