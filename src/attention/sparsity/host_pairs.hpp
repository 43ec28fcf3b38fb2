#pragma once

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
    const std::int64_t row = query / block_tokens;
    const std::int64_t *column = columns_of(head), *const end = column + most_columns_;
    for (std::int64_t i = blocks.block_row_starts[row]; i < blocks.block_row_starts[row + 1]; ++i) {
      const std::int64_t first = blocks.block_columns[i] * block_tokens;
      for (; column < end && *column < first; ++column) visit(*column);
      for (std::int64_t key = first; key < first + block_tokens && key <= query; ++key) visit(key);
      while (column < end && *column < first + block_tokens) ++column;  // those in the block
    }
    for (; column < end && *column <= query; ++column) visit(*column);
  }

  /// All selected pairs of all heads and sequences.
  std::int64_t pairs() const { return pairs_; }

  /// The selected pairs of the blocks, without columns, that a compute of a plan holds, of its heads and all
  /// sequences: what travels in the steps of a plan is for.
  std::int64_t block_pairs(const plan::Problem& problem, const plan::Compute& compute) const;

 private:
  MaskRule of_head(std::int64_t head) const { return blocks_.of_head(head); }
  const std::int64_t* columns_of(std::int64_t head) const {
    return columns_.data() + head / group_ * most_columns_;
  }

  MaskRule blocks_;  // causal, with a list for each head of each sequence
  int batch_ = 1, heads_ = 1;
  std::int64_t group_ = 1, most_columns_ = 0, pairs_ = 0;
  std::vector<std::int64_t> row_starts_, block_columns_, columns_;
};

/// A selection as flags of the rows that a rank holds, (batch, lists, rows), for dumps: whether the row is a
/// column, and whether the block diagonal that lies as many blocks before a query as the row's own block
/// behind the sequence's first one is selected.
struct SelectionFlags {
  Array3<std::uint8_t, HostExec> columns, slashes;
};
/// Waits for `exec`.
template <class Exec>
SelectionFlags marks_of(const Exec& exec, const Selection<Exec>& selection, const PositionMap& rows);

/// Exactly the pairs as a mask, whose blocks are single tokens: for the reference in double precision. Takes
/// 8 bytes a pair.
class PairMask {
 public:
  explicit PairMask(const HostPairs& pairs, std::int64_t batch_heads);
  PairMask(const PairMask&) = delete;
  PairMask& operator=(const PairMask&) = delete;

  /// Lives as long as this.
  const MaskRule& rule() const { return rule_; }

 private:
  MaskRule rule_;
  std::vector<std::int64_t> starts_, columns_;
};

}  // namespace annulus::sparsity
