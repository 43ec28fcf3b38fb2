#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sparsity/options.hpp>

namespace annulus::sparsity {

/// The imbalance degrees of simulator::Imbalance (MTraining §3.3), of the pairs that kernels were given.
struct Balance {
  double workers = 1;  ///< over ranks, columns with them
  double steps = 1;    ///< over the steps of the plan, which compute the blocks
};

/// Pairs of all heads, sequences and passes.
struct SelectedPairs {
  struct OfPass {
    std::int64_t passes = 0;    ///< that were run, those that compute again with them
    std::int64_t selected = 0;  ///< of all ranks, counted from the selections
    std::int64_t computed = 0;  ///< of all ranks, counted from what their kernels were given
    std::int64_t own = 0;       ///< this rank's of these
    Balance imbalance = {};     ///< the mean of the passes
  };
  OfPass forward, backward;
};

/// What a pattern chose for one layer, the same on all ranks, in memory of the execution space. Kept for the
/// backward pass and for what is computed again.
template <class Exec>
struct Selection;

/// Attention over the pairs that a pattern selects anew for each call (dynamic sparse attention; MTraining,
/// sections 4.1 to 4.3). Blocks run through the plans of a executor::Attention, with block lists in the
/// place of its causal mask. Columns, the keys that all later queries see, are collected in each pass, are
/// computed by the ranks that own the queries, as one more partial result, and their gradients go home once
/// (docs/sparsity.md). Where the plan of the pass brings all keys to the queries (Plan::queries_stay),
/// columns are taken from these; otherwise they are summed over the ranks.
template <class Exec, class T>
class SparseAttention {
 public:
  using Dense = executor::Attention<Exec, T>;

  /// `dense` runs plans of `problem` and outlives this, as the communicator does. Throws Error where the mask
  /// is another than `causal` and documents, where the options ask for what the sequence has not, or where
  /// ranks disagree about them. `keep_columns`: what forward() collects of K and V stays with the selection,
  /// for recompute() and backward(). The results are the same, bit for bit.
  SparseAttention(comm::Communicator& communicator, Dense& dense, const plan::Problem& problem,
                  const PatternOptions& options, const attention::KernelOptions& kernel = {},
                  bool keep_columns = false);
  ~SparseAttention();
  SparseAttention(SparseAttention&&) noexcept;
  SparseAttention& operator=(SparseAttention&&) noexcept;

  /// The documents of the next selections and their passes: one mask for all sequences of the batch, or one
  /// for each, as the plans of `dense` have them. Throws Error as the constructor does.
  void set_masks(const Exec& exec, std::span<const Mask> masks);

  /// The pairs for q (batch, heads, rows, head_dim) and k (batch, kv_heads, rows, head_dim), this rank's
  /// rows. Collective, as all of these are.
  std::shared_ptr<const Selection<Exec>> select(const Exec& exec, const Array4<const T, Exec>& q,
                                                const Array4<const T, Exec>& k, float scale);
  /// The pairs by scores of the caller's own, such as an indexer's. The pattern is one that selects blocks of
  /// keys for each query (moba, infllm-v2). Its options still say how many blocks a query gets, and which it
  /// always gets; only its scores are replaced. `scores` (batch, lists, rows, blocks) has this rank's queries
  /// and all blocks of `block` tokens of the sequence, with a list for each query head (moba) or kv head
  /// (infllm-v2). The highest scores win; of equal ones the block at the lower position, and a NaN counts as
  /// the smallest. Scores of blocks that a query always gets, and of later ones, are not looked at. All
  /// layouts and numbers of ranks select alike. Throws Error for other patterns and for wrong extents.
  std::shared_ptr<const Selection<Exec>> select_by_scores(const Exec& exec,
                                                          const Array4<const float, Exec>& scores);
  /// The passes of executor::Attention over the selected pairs; `blocks` of the arrays is not read. Throw
  /// Error for arrays with a soft cap or sinks.
  void forward(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection);
  void backward(const Exec& exec, const typename Dense::Backward& arrays, const Selection<Exec>& selection);

  /// Computes out and lse again, of this rank's queries before position `end` alone, as
  /// executor::Attention::recompute does, whose plan is for these.
  void recompute(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection,
                 std::int64_t end);

  /// Since construction or the last call. Waits for the passes. Throws Error on all ranks where a pass
  /// computed more or fewer pairs than were selected: plans do not prove it, since they know no selection.
  SelectedPairs check_pairs(const Exec& exec);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::sparsity
