#pragma once

#include <cstdint>

#include <annulus/attention/sequence/mask_rule.hpp>

#include "attention/kernels/host_simd/key_spans.hpp"
#include "attention/kernels/host_simd/tuning.hpp"

/// Queries that have a block of keys, gathered (MaskRule::query_blocks).
namespace annulus::attention::host_simd {

/// Queries of which the rows that have a block are gathered together. A tenth of them fills a tile.
inline constexpr int gathered_q_rows = 512;

/// The rows of a tile of queries by which work is dealt out: rows side by side, or those that are gathered
/// from.
inline int rows_of_tile(const MaskRule& mask, int side_by_side) {
  return mask.query_blocks != nullptr ? gathered_q_rows : side_by_side;
}

/// Block columns first … last.
struct BlockColumns {
  std::int64_t first, last;

  static BlockColumns of(const MaskRule& mask, const KeyPositions& keys) {
    return {keys.front() / mask.block_size, keys.back() / mask.block_size};
  }
  bool one() const { return first == last; }
};

/// Writes the rows of `queries` that have one of the columns and see one of the key rows `keys` to `to`, in
/// their order, and returns how many there are.
inline int gather_rows(const RowMask& mask, RowRange queries, const BlockColumns& columns, RowRange keys,
                       std::int32_t* to) {
  int count = 0;
  for (std::int64_t row = queries.begin; row < queries.end; ++row) {
    const KeySpan& span = mask.spans[row];
    if (span.end <= keys.begin || span.begin >= keys.end) continue;
    const std::int64_t position = mask.q_positions(row);
    bool has = false;
    for (std::int64_t column = columns.first; column <= columns.last && !has; ++column)
      has = mask.rule.query_has_block(position, column);
    if (has) to[count++] = static_cast<std::int32_t>(row);
  }
  return count;
}

/// What `queries`, which have all the keys' blocks, see of these by band and documents.
inline Coverage coverage_of_spans(const KeySpan* spans, const QueryRows& queries, RowRange keys) {
  const KeySpan &first = spans[queries(0)], &last = spans[queries(queries.count - 1)];
  if (last.end <= keys.begin || first.begin >= keys.end) return Coverage::empty;
  return last.begin <= keys.begin && keys.end <= first.end ? Coverage::full : Coverage::partial;
}

}  // namespace annulus::attention::host_simd
