#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "training/run/config/resolve.hpp"

namespace annulus::training {

/// What the attention of a run computes, and by which plans. Each mask of layers (ResolvedAttention::masks)
/// has its own: one for all sequences of a pass (train.sequences_per_pass), or one for each of them where
/// masks follow the documents of the data.
class SequencePlans {
 public:
  enum class Passes { both, forward };

  /// For rank `rank` of the context-parallel group.
  SequencePlans(int rank, ResolvedAttention attention, Passes passes = Passes::both);

  /// What they are made from. Where each sequence has a mask of its own: that of the first.
  const ResolvedAttention& attention() const { return attention_; }
  const plan::Problem& problem() const { return attention_.problem; }
  /// This rank's rows of every sequence.
  PositionMap rows() const { return problem().shard(rank_); }

  /// In the next pass the documents of sequence `sequence` (from 0) start at these positions. True when the
  /// plans change with them.
  bool follow(int sequence, std::span<const std::int64_t> document_starts);

  /// From the next make() on there are plans that compute attention again for the queries before `position`
  /// alone (executor::Plans::recompute); 0: none.
  void recompute_before(std::int64_t position);

  /// What executor::Attention takes, of each mask.
  std::vector<std::vector<executor::Plans>> make() const;

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
  // What a sequence may have of its own under one of the masks.
  struct Masked {
    Masked(Mask mask, std::span<const std::int64_t> document_starts);
    Mask mask;
    std::vector<std::int64_t> document_starts;
    std::int64_t pairs;  // unmasked (query, key) of one head
  };
  plan::Problem problem_before(const Masked& masked) const;
  plan::Plan make_plan(const plan::Problem& problem, plan::Pass pass) const {
    return attention_.make_plan(attention_.schedule, problem, pass);
  }

  int rank_;
  Passes passes_;
  ResolvedAttention attention_;
  std::vector<std::vector<Masked>> masks_;  // of each mask: of all sequences, or of each
  std::int64_t before_ = 0;                 // position of recompute_before
};

}  // namespace annulus::training
