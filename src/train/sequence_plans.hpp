#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>
#include <annulus/train/config.hpp>

#include "train/attention_inputs.hpp"

namespace annulus::train {

/// What the attention of a run computes, and by which plans. The mask may follow the documents of each
/// sequence.
class SequencePlans {
 public:
  /// Schedule or layout stands as auto in the configuration, and the mask follows the documents of the data.
  static bool chooses_by_documents(const Config& config);

  /// For this rank of the context-parallel group of `topology`. Chooses where the configuration says auto:
  /// every rank alike, from the same numbers.
  SequencePlans(const Topology& topology, int rank, const Config& config, const AttentionInputs& inputs);

  /// This rank's rows of every sequence.
  PositionMap rows() const { return problem_.shard(rank_); }

  /// The next sequence's documents start at these positions. True when the plans change with them.
  bool follow(std::span<const std::int64_t> document_starts);

  plan::Plan make(plan::Pass pass) const;

  const plan::Problem& problem() const { return problem_; }
  const std::string& schedule() const { return schedule_; }
  const Layout& layout() const { return problem_.layout; }
  /// Schedule or layout stood as auto in the configuration.
  bool chosen() const { return chosen_; }

  /// Unmasked (query, key) pairs of one head of the sequence, over all ranks.
  std::int64_t pairs() const { return pairs_; }

 private:
  void choose(const Config& config, const simulate::Cluster& cluster);
  void set_mask(Mask mask);

  int rank_;
  std::string schedule_;
  bool follows_documents_, chosen_;
  std::vector<std::int64_t> starts_;  // of the sequence whose mask is set
  plan::Problem problem_;
  MakePlan make_plan_;
  std::int64_t pairs_ = 0;
};

}  // namespace annulus::train
