#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/mask_rule.hpp>

#include "attention/sparsity/selection.hpp"

namespace annulus::sparsity {

/// The pairs of a selection on the host, for checks, dumps and reports.
class HostPairs {
 public:
  /// Waits for `exec`.
  template <class Exec>
  HostPairs(const Exec& exec, const Selection<Exec>& selection);
  HostPairs(const HostPairs&) = delete;
  HostPairs& operator=(const HostPairs&) = delete;

  std::int64_t tokens() const { return blocks_.tokens; }
  int heads() const { return heads_; }

  /// Calls visit(key) for the selected keys of a query in increasing order; `head` counts query heads over
  /// the batch.
  template <class Visit>
  void for_keys(std::int64_t head, std::int64_t query, const Visit& visit) const {
    const MaskRule blocks = of_head(head);
    const std::int64_t begin = blocks.keys(query).begin;
    if (blocks.query_blocks != nullptr) {
      for (std::int64_t key = begin; key <= query; ++key)
        if (blocks.query_has_block(query, key / blocks.block_size)) visit(key);
      return;
    }
    const std::int64_t row = query / block_tokens;
    const std::int64_t *const columns = columns_of(head), *const end = columns + most_columns_,
                              *column = std::lower_bound(columns, end, begin);
    for (std::int64_t i = blocks.block_row_starts[row]; i < blocks.block_row_starts[row + 1]; ++i) {
      const std::int64_t first = blocks.block_columns[i] * block_tokens;
      for (; column < end && *column < first; ++column) visit(*column);
      for (std::int64_t key = std::max(first, begin); key < first + block_tokens && key <= query; ++key)
        visit(key);
      while (column < end && *column < first + block_tokens) ++column;  // those in the block
    }
    for (; column < end && *column <= query; ++column) visit(*column);
  }

  /// Whether query head `head`, counted over the batch, has the pair.
  bool allows(std::int64_t head, std::int64_t query, std::int64_t key) const {
    const MaskRule blocks = of_head(head);
    if (!blocks.keys(query).contains(key)) return false;
    const std::int64_t* const columns = columns_of(head);
    return blocks.block_allows(query, key) || std::binary_search(columns, columns + most_columns_, key);
  }

  /// All selected pairs of all heads and sequences.
  std::int64_t pairs() const { return pairs_; }

  /// The selected pairs of the blocks, without columns, of these queries, keys and heads of all sequences:
  /// what a compute of a plan has, for which its steps travel.
  std::int64_t block_pairs(const PositionMap& q, const PositionMap& k, plan::HeadRange heads) const;

 private:
  MaskRule of_head(std::int64_t head) const {
    MaskRule rule = blocks_.of_head(head);
    if (document_sets_.empty()) return rule;
    const auto sequence = static_cast<std::size_t>(head / heads_);
    const std::vector<std::int64_t>& starts = document_sets_[document_sets_.size() == 1 ? 0 : sequence];
    rule.document_starts = starts.data();
    rule.documents = std::ssize(starts) - 1;
    return rule;
  }
  const std::int64_t* columns_of(std::int64_t head) const {
    return columns_.data() + head / group_ * most_columns_;
  }

  MaskRule blocks_;  // causal, with a list for each head of each sequence
  int batch_ = 1, heads_ = 1;
  std::int64_t group_ = 1, most_columns_ = 0, pairs_ = 0;
  std::vector<std::int64_t> row_starts_, block_columns_, columns_;
  std::vector<std::uint32_t> query_blocks_;
  std::vector<std::vector<std::int64_t>> document_sets_;  // as Documents has them, where there are any
};

namespace flags {

/// A selection as flags of the rows that a rank holds, for dumps. They wait for `exec`.
///
/// (batch, lists, rows): whether the row is a column.
template <class Exec>
Array3<std::uint8_t, HostExec> columns(const Exec& exec, const Selection<Exec>& selection,
                                       const PositionMap& rows);
/// (batch, lists, rows), where all block rows share a pattern row: whether the block diagonal that lies as
/// many blocks before a query as the row's own block behind the sequence's first one is selected.
template <class Exec>
Array3<std::uint8_t, HostExec> slashes(const Exec& exec, const Selection<Exec>& selection,
                                       const PositionMap& rows);
/// (batch, lists, rows, bytes), where each block row or each query has its own: bit c modulo 8 of byte c / 8
/// says whether the row, as a query, has block column c, of block_tokens.
template <class Exec>
Array4<std::uint8_t, HostExec> blocks(const Exec& exec, const Selection<Exec>& selection,
                                      const PositionMap& rows);

}  // namespace flags

/// Calls record(name, flags) for what dumps hold of a selection (docs/formats/tensor-dump.md): columns where
/// there are some, and slashes, blocks or blocks of each query. Waits for `exec`.
template <class Exec, class Record>
void record_selection(const Exec& exec, const Selection<Exec>& selection, const PositionMap& rows,
                      const Record& record) {
  const bool slashes = selection.pattern_rows == PatternRows::all;
  if (slashes || selection.most_columns() > 0)
    record("selected_columns", flags::columns(exec, selection, rows));
  if (slashes) {
    record("selected_slashes", flags::slashes(exec, selection, rows));
  } else {
    const bool of_queries = selection.pattern_rows == PatternRows::of_query;
    record(of_queries ? "selected_query_blocks" : "selected_blocks", flags::blocks(exec, selection, rows));
  }
}

}  // namespace annulus::sparsity
