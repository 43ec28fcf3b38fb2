#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/training/run/config.hpp>

#include "training/run/config/attention_inputs.hpp"

namespace annulus::training {

/// What the attention of a run computes, and by which plans: one for all sequences of a pass
/// (train.sequences_per_pass), or one for each of them where the mask follows the documents of the data.
class SequencePlans {
 public:
  /// Schedule or layout stands as auto in the configuration, and the mask follows the documents of the data.
  static bool chooses_by_documents(const Config& config);

  /// For this rank of the context-parallel group of `topology`. Chooses where the configuration says auto:
  /// every rank alike, from the same numbers.
  SequencePlans(const Topology& topology, int rank, const Config& config, const AttentionInputs& inputs);

  /// Sequences of a pass.
  int sequences() const { return sequences_; }
  /// This rank's rows of every sequence.
  PositionMap rows() const { return problem_.shard(rank_); }

  /// In the next pass the documents of sequence `sequence` (from 0) start at these positions. True when the
  /// plans change with them.
  bool follow(int sequence, std::span<const std::int64_t> document_starts);

  /// From the next make() on there are plans that compute attention again for the queries before `position`
  /// alone (executor::Plans::recompute); 0: none.
  void recompute_before(std::int64_t position);

  /// What executor::Attention takes.
  std::vector<executor::Plans> make() const;

  /// Where each sequence has a mask of its own: that of the first.
  const plan::Problem& problem() const { return problem_; }
  const std::string& schedule() const { return schedule_; }
  const Layout& layout() const { return problem_.layout; }
  /// Schedule or layout stood as auto in the configuration.
  bool chosen() const { return chosen_; }

  /// Unmasked (query, key) pairs of one head, over all sequences of the pass and all ranks.
  std::int64_t pairs() const;
  /// Those of the queries before the position of recompute_before; 0 where there is none.
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
  void choose(const Config& config, const simulator::Cluster& cluster);

  int rank_, sequences_;
  std::string schedule_;
  bool follows_documents_, chosen_;
  plan::Problem problem_;
  MakePlan make_plan_;
  std::vector<Masked> masks_;  // of all sequences, or of each
  std::int64_t before_ = 0;    // position of recompute_before
};

}  // namespace annulus::training
