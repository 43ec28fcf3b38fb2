#pragma once

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/division.hpp>
#include <cstdint>
#include <limits>

namespace annulus {

/// Keys begin, begin + stride, … below end, in global positions.
struct KeyRange {
  std::int64_t begin = 0, end = 0, stride = 1;
  ANNULUS_FUNCTION constexpr bool empty() const { return end <= begin; }
  ANNULUS_FUNCTION constexpr bool contains(std::int64_t k) const {
    return k >= begin && k < end && (stride == 1 || (k - begin) % stride == 0);
  }
};

/// What a (query tile, key tile) pair holds of the mask.
enum class Coverage : std::uint8_t { empty, partial, full };

/// The mask in the form kernels read: numbers and borrowed arrays, no ownership. All masks are intersections
/// of a band q − left ≤ k ≤ q + right, a dilation (q − k divisible by `dilation`), documents (k in q's
/// document) and blocks, which a list or each query has. Positions are global, so neither layout nor number
/// of ranks changes what is masked. `left` and `right` are not negative: band, dilation and documents leave
/// every query at least its own key.
struct MaskRule {
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max() / 4;

  std::int64_t tokens = 0;         ///< length of the whole sequence
  std::int64_t left = unbounded;   ///< keys at most this far before the query
  std::int64_t right = unbounded;  ///< keys at most this far behind it (causal: 0)
  std::int64_t dilation = 1;       ///< distance of the keys of a row

  /// Start offsets of the documents, increasing from 0, closed by `tokens`; null without document mask.
  const std::int64_t* document_starts = nullptr;
  std::int64_t documents = 0;

  /// Block list (CSR): block row r holds the increasing block columns columns[row_starts[r] …
  /// row_starts[r+1]); null without block mask.
  std::int64_t block_size = 0;
  const std::int64_t* block_row_starts = nullptr;
  const std::int64_t* block_columns = nullptr;
  /// Block lists: 1 for all heads, or one for each `heads_of_list` consecutive heads of batch × heads of
  /// queries (dynamic sparsity; MTraining, section 3). The starts of list i begin at block_row_starts +
  /// i · (block_rows() + 1) and count in all of block_columns.
  std::int64_t block_lists = 1;
  std::int64_t heads_of_list = 0;  ///< 0: all heads have the one list
  /// The lists hold the blocks that are masked, and all others are allowed: what keys outside the lists,
  /// taken one by one (KeyPositions), leave to those who compute the lists.
  bool blocks_excluded = false;

  /// Blocks of keys of each query, in the place of a block list: bit b of the words of a query, by its global
  /// position, says whether it has block column b. (block_lists, tokens, words_of_query()); null without.
  const std::uint32_t* query_blocks = nullptr;

  ANNULUS_FUNCTION std::int64_t block_rows() const { return (tokens + block_size - 1) / block_size; }
  /// Whether blocks are masked: by a list, or for each query.
  ANNULUS_FUNCTION bool has_blocks() const { return block_row_starts != nullptr || query_blocks != nullptr; }
  /// Whether heads have blocks of their own.
  ANNULUS_FUNCTION bool lists_of_heads() const { return has_blocks() && heads_of_list > 0; }
  /// The mask with the lists from list `list` on.
  ANNULUS_FUNCTION MaskRule from_list(std::int64_t list) const {
    MaskRule rule = *this;
    if (block_row_starts != nullptr) rule.block_row_starts += list * (block_rows() + 1);
    if (query_blocks != nullptr) rule.query_blocks += list * tokens * words_of_query();
    return rule;
  }
  /// The mask of the heads that have list `list`.
  ANNULUS_FUNCTION MaskRule of_list(std::int64_t list) const {
    MaskRule rule = lists_of_heads() ? from_list(list) : *this;
    rule.block_lists = 1;
    rule.heads_of_list = 0;
    return rule;
  }
  /// The mask of head `head` of batch × heads.
  ANNULUS_FUNCTION MaskRule of_head(std::int64_t head) const {
    return of_list(heads_of_list > 0 ? head / heads_of_list : 0);
  }

  /// The keys of query `q` (a global position) before the block list is applied. Both ends do not decrease as
  /// q grows (`begin` up to its residue under dilation).
  ANNULUS_FUNCTION KeyRange keys(std::int64_t q) const {
    KeyRange range = key_range(q, left, right);
    if (dilation > 1) {  // begin moves up to the residue of q
      range.begin += (q - range.begin) % dilation;
      range.stride = dilation;
    }
    return range;
  }

  /// True when query `q` attends to key `k` (both global positions).
  ANNULUS_FUNCTION bool allows(std::int64_t q, std::int64_t k) const {
    return keys(q).contains(k) && block_allows(q, k);
  }

  /// Words of 32 bits that a query has of query_blocks.
  ANNULUS_FUNCTION std::int64_t words_of_query() const { return (block_rows() + 31) / 32; }
  /// Whether query `q` (a global position) has block column `column`, by query_blocks.
  ANNULUS_FUNCTION bool query_has_block(std::int64_t q, std::int64_t column) const {
    return (query_blocks[q * words_of_query() + column / 32] >> (column % 32) & 1u) != 0;
  }

  /// True when the blocks (if there are any) allow the block of (q, k).
  ANNULUS_FUNCTION bool block_allows(std::int64_t q, std::int64_t k) const;

  /// Classifies the tile of the rows of `q` against the rows of `k`. Errs only towards partial.
  /// O(1) without documents and blocks, O(log documents) and O(block rows of q · log) with them, O(rows of q)
  /// where each query has blocks.
  /// Keys is PositionMap or KeyPositions; the latter only without dilation.
  template <class Keys>
  ANNULUS_FUNCTION Coverage classify(const PositionMap& q, const Keys& k) const;
  /// Classifies a tile that is not empty by blocks alone, where there are any.
  template <class Keys>
  ANNULUS_FUNCTION Coverage classify_blocks(const PositionMap& q, const Keys& k) const;

  /// Index of the document that holds `position`.
  ANNULUS_FUNCTION std::int64_t document(std::int64_t position) const;

  /// Positions at most `before` before and at most `behind` behind `position`, within its document, stride 1.
  /// key_range(q, left, right) are the keys of a query, key_range(k, right, left) the queries of a key, both
  /// before dilation and block list are applied.
  ANNULUS_FUNCTION KeyRange key_range(std::int64_t position, std::int64_t before, std::int64_t behind) const;

  /// Index into block_columns of the first block of block row `row` at or behind block column `column`.
  ANNULUS_FUNCTION std::int64_t first_block(std::int64_t row, std::int64_t column) const;

 private:
  template <class Keys>
  ANNULUS_FUNCTION Coverage classify_band(const PositionMap& q, const Keys& k) const;
  /// Block columns first … last that query `q` has, by the list or by query_blocks.
  ANNULUS_FUNCTION std::int64_t allowed_columns(std::int64_t q, std::int64_t first, std::int64_t last) const;
};

// --- Inline device code -----------------------------------------------------------------------------------

namespace detail {

ANNULUS_FUNCTION constexpr std::int64_t greatest_common_divisor(std::int64_t a, std::int64_t b) {
  while (b != 0) {
    const std::int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/// A number that divides all distances between the rows of `map`; 0 for a single row.
ANNULUS_FUNCTION constexpr std::int64_t common_step(const PositionMap& map) {
  if (map.runs != nullptr) return map.count > 1 ? 1 : 0;
  const bool several_blocks = map.first / map.block != (map.first + map.count - 1) / map.block;
  const bool several_rows = map.block > 1 && map.count > 1;
  return greatest_common_divisor(several_blocks ? map.hi : 0, several_rows ? map.lo : 0);
}

/// A number that divides all distances between keys that may stand anywhere.
ANNULUS_FUNCTION constexpr std::int64_t common_step(const KeyPositions& keys) {
  return keys.listed == nullptr ? common_step(keys.map) : 1;
}

}  // namespace detail

ANNULUS_FUNCTION inline std::int64_t MaskRule::document(std::int64_t position) const {
  std::int64_t low = 0, high = documents;  // the last document that starts at or before `position`
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (document_starts[middle] <= position ? low : high) = middle;
  }
  return low;
}

ANNULUS_FUNCTION inline KeyRange MaskRule::key_range(std::int64_t position, std::int64_t before,
                                                     std::int64_t behind) const {
  std::int64_t begin = before >= position ? 0 : position - before;
  std::int64_t end = behind >= tokens - 1 - position ? tokens : position + behind + 1;
  if (document_starts != nullptr) {
    const std::int64_t own = document(position);
    if (begin < document_starts[own]) begin = document_starts[own];
    if (end > document_starts[own + 1]) end = document_starts[own + 1];
  }
  return {begin, end, 1};
}

ANNULUS_FUNCTION inline std::int64_t MaskRule::first_block(std::int64_t row, std::int64_t column) const {
  std::int64_t low = block_row_starts[row], high = block_row_starts[row + 1];
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (block_columns[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

ANNULUS_FUNCTION inline bool MaskRule::block_allows(std::int64_t q, std::int64_t k) const {
  if (query_blocks != nullptr) return query_has_block(q, k / block_size);
  if (block_row_starts == nullptr) return true;
  const std::int64_t row = q / block_size, column = k / block_size;
  const std::int64_t found = first_block(row, column);
  const bool listed = found < block_row_starts[row + 1] && block_columns[found] == column;
  return listed != blocks_excluded;
}

template <class Keys>
ANNULUS_FUNCTION Coverage MaskRule::classify(const PositionMap& q, const Keys& k) const {
  if (q.empty() || k.empty()) return Coverage::empty;
  const Coverage band = classify_band(q, k);
  if (band == Coverage::empty || !has_blocks()) return band;
  const Coverage blocks = classify_blocks(q, k);
  return band == Coverage::full || blocks == Coverage::empty ? blocks : Coverage::partial;
}

template <class Keys>
ANNULUS_FUNCTION Coverage MaskRule::classify_band(const PositionMap& q, const Keys& k) const {
  // Both ends of the keys of a row grow with the row, so the first and the last row bound all others. What no
  // row of the one side reaches is looked for from both sides, because either may have gaps between its
  // blocks.
  const KeyRange first = key_range(q.front(), left, right), last = key_range(q.back(), left, right);
  if (k.rows_below(first.begin) == k.rows_below(last.end)) return Coverage::empty;
  const KeyRange first_queries = key_range(k.front(), right, left),
                 last_queries = key_range(k.back(), right, left);
  if (q.rows_below(first_queries.begin) == q.rows_below(last_queries.end)) return Coverage::empty;

  bool divisible = true;
  if (dilation > 1) {  // the residues of q − k are all the same up to multiples of `step`
    const std::int64_t steps =
        detail::greatest_common_divisor(detail::common_step(q), detail::common_step(k));
    const std::int64_t step = detail::greatest_common_divisor(steps, dilation);
    if ((q.front() - k.front()) % step != 0) return Coverage::empty;
    divisible = step == dilation;
  }
  const bool inside = last.begin <= k.front() && k.back() < first.end;
  return inside && divisible ? Coverage::full : Coverage::partial;
}

ANNULUS_FUNCTION inline std::int64_t MaskRule::allowed_columns(std::int64_t q, std::int64_t first,
                                                               std::int64_t last) const {
  std::int64_t columns = 0;
  if (query_blocks != nullptr) {
    for (std::int64_t column = first; column <= last; ++column) columns += query_has_block(q, column) ? 1 : 0;
    return columns;
  }
  const std::int64_t row = q / block_size;
  columns = first_block(row, last + 1) - first_block(row, first);
  return blocks_excluded ? last - first + 1 - columns : columns;
}

template <class Keys>
ANNULUS_FUNCTION Coverage MaskRule::classify_blocks(const PositionMap& q, const Keys& k) const {
  const std::int64_t first_column = k.front() / block_size, last_column = k.back() / block_size;
  const std::int64_t columns = last_column - first_column + 1;
  bool some = false, missing = false;
  for (std::int64_t i = 0; i < q.count;) {
    const std::int64_t position = q(i), allowed = allowed_columns(position, first_column, last_column);
    some = some || allowed > 0;
    missing = missing || allowed < columns;
    if (some && missing) return Coverage::partial;
    i = query_blocks != nullptr ? i + 1 : q.rows_below((position / block_size + 1) * block_size);
  }
  return some ? Coverage::full : Coverage::empty;
}

}  // namespace annulus
