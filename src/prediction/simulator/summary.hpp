#pragma once

#include <cstdint>
#include <vector>

#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::simulator {

/// Sizes of the exchange slots of one rank. A slot is as large as the largest slice that it ever holds.
class SlotSizes {
 public:
  void hold(const plan::Problem& problem, const plan::TensorSlice& slice, plan::Slot slot);
  std::int64_t bytes() const;

 private:
  std::array<std::vector<std::int64_t>, plan::tensor_count> slots_;  // bytes
};

/// Seconds that a plan takes, roughly and quickly: all ranks wait where one of them waits for transfers,
/// which take their ports one after another, and a sample of the ranks and of the steps stands for all.
/// `density`: Selected::density.
double coarse_time(const plan::Plan& plan, const Cluster& cluster, double density);

/// Ranks that a simulation goes through and that stand for all: whole nodes and periods.
int ranks_to_simulate(const plan::Plan& plan, Detail detail, plan::RankSubset subset);

/// Messages that a simulation handles, told by those of a few ranks; some number above `enough` when it is
/// more.
std::int64_t messages_to_simulate(const plan::Plan& plan, Detail detail, plan::RankSubset subset,
                                  std::int64_t enough);

/// Loads by rank and round, of which the imbalance degrees are made.
class StepLoads {
 public:
  StepLoads(int ranks, int steps);
  /// A rank computes `pairs` pairs in a step of a round (Plan::round), all its computes together. Rounds of a
  /// rank come in order, but for what is left of round 0.
  void add(int rank, int round, std::int64_t pairs);
  Imbalance imbalance() const;

 private:
  std::vector<std::int64_t> sum_, largest_;  // of each rank, over rounds
  std::vector<int> round_;                   // of each rank, the last one
  std::vector<std::int64_t> of_first_;       // of each rank, in round 0
  std::vector<std::int64_t> of_round_;       // of each rank, in its last round but that one
  std::vector<bool> computing_;              // by the first step of a round
};

}  // namespace annulus::simulator
