#pragma once

#include <Kokkos_Core.hpp>
#include <span>
#include <utility>
#include <vector>

#include <annulus/attention/executor/attention.hpp>

#include "base/kokkos/execution/region.hpp"
#include "training/data/dataset.hpp"
#include "training/run/passes/sequence_plans.hpp"

namespace annulus::training {

/// The distributed attention of a run. Its plans are made, and what runs is proved, anew where the documents
/// of a pass' sequences change them: wrong plans end the run before the optimizer step that they are for.
template <class Exec, class T>
class SequenceAttention {
 public:
  using Attention = executor::Attention<Exec, T>;

  SequenceAttention(const Exec& exec, comm::Communicator& context, const executor::Settings& settings,
                    const SequencePlans& plans)
      : SequenceAttention(exec, context, settings, plans, plans.make()) {}

  /// For the sequences of a pass.
  Attention& for_pass(const Exec& exec, std::span<const data::Sequence> sequences) {
    const Kokkos::Timer timer;
    bool changed = false;
    for (int i = 0; i < plans_.attention().sequences; ++i)
      changed |= plans_.follow(i, sequences[static_cast<std::size_t>(i)].document_starts);
    if (changed) {
      const Region region("annulus::training::plan");
      const std::vector<executor::Plans> plans = plans_.make();
      attention_.set_plans(exec, plans);
      pairs_ = RankPairs(plans, rank_);
      planning_seconds_ += timer.seconds();
    }
    return attention_;
  }

  const SequencePlans& plans() const { return plans_; }
  /// What for_pass gives.
  Attention& attention() { return attention_; }

  /// Unmasked (query, key, head) of this rank's local kernels in a call for the sequences of the last pass.
  struct RankPairs {
    RankPairs(std::span<const executor::Plans> plans, int rank) {
      const auto pairs = [rank](const plan::Plan& plan) {
        return double(plan::traffic(plan, rank).pairs) * plan.problem.batch;
      };
      for (const auto& [forward_plan, backward_plan, recompute_plan] : plans) {
        forward += pairs(forward_plan);
        if (backward_plan) backward += pairs(*backward_plan);
        if (recompute_plan) recompute += pairs(*recompute_plan);
      }
    }
    double forward = 0, backward = 0, recompute = 0;
  };
  const RankPairs& pairs() const { return pairs_; }

  void reset_times() {
    attention_.reset_times();
    planning_seconds_ = 0;
  }
  double computing_seconds() const { return attention_.times().computing; }
  double exposed_communication_seconds() const { return attention_.times().exposed_communication; }
  /// The share of the time of its plan steps in which it computes; 1 where nothing takes time.
  double computation_ratio() const {
    const typename Attention::Times times = attention_.times();
    const double all = times.computing + times.exposed_communication;
    return all > 0 ? times.computing / all : 1;
  }
  /// Spent by for_pass on new masks and plans, and on their proof. They count on every rank alike: all
  /// agree on the plans before they go on.
  double planning_seconds() const { return planning_seconds_; }

 private:
  SequenceAttention(const Exec& exec, comm::Communicator& context, const executor::Settings& settings,
                    const SequencePlans& plans, const std::vector<executor::Plans>& made)
      : plans_(plans),
        rank_(context.rank()),
        pairs_(made, rank_),
        attention_(exec, context, made, settings) {}

  SequencePlans plans_;
  int rank_;
  RankPairs pairs_;
  Attention attention_;
  double planning_seconds_ = 0;
};

}  // namespace annulus::training
