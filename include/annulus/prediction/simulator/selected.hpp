#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::simulator {

/// What kernels compute of the pairs that a plan's mask allows: dynamic sparse attention selects some while a
/// step runs, and plans, which say what travels, know nothing of it (docs/sparsity.md).
struct Selected {
  double density = 1;  ///< share of the pairs; of every compute alike where `pairs` is empty
  /// The selected pairs of a compute, summed over its heads, of one sequence. Empty: by `density`.
  std::function<std::int64_t(const plan::Problem&, const plan::Compute&)> pairs = {};

  bool all() const { return density == 1 && !pairs; }
};

/// A selection of blocks: which (query, key) blocks of `block` tokens each head computes. The columns of a
/// selection, which no step of a plan computes, are not in it.
class SelectedBlocks {
 public:
  /// Block diagonals. distances: of each list of a sequence those that are selected; heads / lists query
  /// heads share one.
  SelectedBlocks(std::int64_t tokens, std::int64_t block,
                 const std::vector<std::vector<std::int64_t>>& distances);
  /// Any blocks. columns: of each list and block row the selected block columns, increasing, none behind the
  /// row's own.
  static SelectedBlocks of_rows(std::int64_t tokens, std::int64_t block,
                                const std::vector<std::vector<std::vector<std::int64_t>>>& columns);

  std::int64_t tokens() const { return tokens_; }
  int lists() const { return static_cast<int>(starts_.size()); }
  /// Selected pairs of the compute's heads. Throws Error when the problem has another length, or heads that
  /// cannot share the lists.
  std::int64_t pairs(const plan::Problem& problem, const plan::Compute& compute) const;
  /// Share of the causal pairs.
  double density() const;
  /// For the simulator; lives no longer than this.
  Selected selected() const;

 private:
  SelectedBlocks(std::int64_t tokens, std::int64_t block) : tokens_(tokens), block_(block) {}
  std::int64_t list_pairs(std::size_t list, const PositionMap& q, const PositionMap& k) const;

  std::int64_t tokens_, block_;
  std::vector<std::vector<std::int64_t>> starts_, columns_;  // block lists (MaskRule), of each list
};

}  // namespace annulus::simulator
