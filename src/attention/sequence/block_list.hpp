#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::detail {

/// Which blocks of a block-sparse mask hold keys, row by row (CSR): block row r holds the increasing block
/// columns columns[row_starts[r] … row_starts[r+1]).
struct BlockList {
  std::vector<std::int64_t> row_starts;  ///< blocks + 1 entries
  std::vector<std::int64_t> columns;
};

/// Reads a block list (docs/formats/block-mask.md) that must have `blocks` block rows and columns.
/// Throws Error naming file and line; `context` says whose file it is, for instance "mask = '…'".
BlockList read_block_list(const std::string& file, std::int64_t blocks, std::string_view context);

}  // namespace annulus::detail
