#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "training/run/config/resolve.hpp"

namespace annulus::training {

/// What the attention of a run computes, and by which plans: one for all sequences of a pass
/// (train.sequences_per_pass), or one for each of them where the mask follows the documents of the data.
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

  /// What executor::Attention takes.
  std::vector<executor::Plans> make() const;

  /// Unmasked (query, key) pairs of one head, over all sequences of the pass and all ranks.
  std::int64_t pairs() const;
  /// Pairs of the queries before the position of recompute_before; 0 where there is none.
  std::int64_t pairs_before() const;
  /// How unevenly the ranks share them (plan::worker_imbalance), the sequences one after the other: the
  /// largest of the sequences' numbers; 1 where there is no such position.
  double imbalance_before() const;

 private:
  // What a sequence may have of its own.
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
  std::vector<Masked> masks_;  // of all sequences, or of each
  std::int64_t before_ = 0;    // position of recompute_before
};

}  // namespace annulus::training
