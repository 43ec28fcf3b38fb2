#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "training/data/dataset.hpp"
#include "training/data/loader.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/passes/planned_sequence.hpp"

namespace annulus::training {

/// What the attention of a run computes, and by which plans. Each mask of layers (ResolvedAttention::masks)
/// has its own: one for all sequences of a pass (train.sequences_per_pass), or one for each of them where
/// masks follow the documents of the data.
class SequencePlans {
 public:
  enum class Passes { both, forward };

  /// Plans for rank `rank` of the context-parallel group.
  SequencePlans(int rank, ResolvedAttention attention, Passes passes = Passes::both);

  /// What they are made from. Where each sequence has a mask of its own: that of the first.
  const ResolvedAttention& attention() const { return attention_; }
  const plan::Problem& problem() const { return attention_.problem; }
  /// This rank's rows of every sequence; where each is cut for its documents, of the first.
  PositionMap rows() const { return problem().shard(options_.rank); }
  /// Deals the sequences of a global batch to groups by their pairs, where each is cut for its documents; to
  /// groups in turns elsewhere.
  data::Dealing dealing() const;
  /// What readers of sequences have to read for this rank. Where each sequence is cut for its documents, they
  /// prepare its plans as well (prepare_with), and agree on them with the readers of other ranks where there
  /// is an `agreement`. Lives on without this object.
  data::RankRows rank_rows(const std::shared_ptr<PlanAgreement>& agreement = nullptr) const;

  /// Makes the documents of sequence `sequence` (from 0) start at these positions in the next pass. True when
  /// the plans change with them. `held`: what rank_rows gave for them, or null.
  bool follow(int sequence, std::span<const std::int64_t> document_starts,
              const std::shared_ptr<const data::HeldRows>& held = nullptr);

  /// Adds, from the next make() on, plans that compute attention again for the queries before `position`
  /// alone (executor::Plans::recompute); 0: none.
  void recompute_before(std::int64_t position);

  /// A mask of layers: of all sequences of a pass, or of each.
  std::vector<Mask> masks(int mask) const;
  /// Plans of each mask, as executor::Attention takes them.
  std::vector<std::vector<executor::Plans>> make() const;

  /// Plans of each mask for the first sequence, or for all.
  std::vector<executor::Plans> of_first() const;

  /// Plans of each mask whose exchange buffers are as large as those of any sequence, where each sequence is
  /// cut for its documents; else none.
  std::vector<std::vector<executor::Plans>> largest() const;

  /// The attention of each mask runs what `prepare` has made: executor::Attention::preparation, the same for
  /// all. From here on `prepared` may be asked.
  void prepare_with(executor::Prepare prepare);
  /// Prepared plans of a mask.
  struct Prepared {
    std::vector<std::shared_ptr<const executor::PreparedPlans>> plans;
    RankPairs pairs;  ///< of this rank, in a call for the sequences of the pass
    /// What the ranks have agreed on; alike on all of them.
    executor::Agreed agreed = executor::Agreed::ahead;
  };
  std::vector<Prepared> prepared() const;

  /// How the sequences of a pass are dealt out by the layout `balanced`.
  struct Cut {
    double most_pairs = 0, mean_pairs = 0;  ///< of the rank with the most, and the mean of the group
    std::uint64_t fingerprint = 0;          ///< of documents and runs of rows
    double seconds_ahead = 0;               ///< that this rank's host threads took for cut and plans
    Cut& operator+=(const Cut& other);
  };
  /// How the sequences of the pass are dealt out; nothing for layouts other than `balanced`.
  std::optional<Cut> cut() const;

  /// Unmasked (query, key) pairs of one head under a mask, over all sequences of the pass and all ranks.
  std::int64_t pairs(int mask) const;
  /// The mean of the layers.
  double pairs() const;
  /// Pairs of the queries before the position of recompute_before under a mask; 0 where there is none.
  std::int64_t pairs_before(int mask) const;
  /// How unevenly the ranks share them (plan::worker_imbalance), the sequences one after the other: the
  /// largest number of a sequence under a mask; 1 where there is no such position.
  double imbalance_before() const;

 private:
  void replan();
  void set(std::size_t sequence, std::vector<Mask> masks, std::span<const std::int64_t> document_starts);

  ResolvedAttention attention_;
  PlanOptions options_;
  std::vector<std::shared_ptr<const PlannedSequence>> sequences_;  // all of a pass as one, or each
};

}  // namespace annulus::training
