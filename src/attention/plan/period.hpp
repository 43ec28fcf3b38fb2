#pragma once

#include <cstdint>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

/// Plans that repeat themselves (Plan::period): ranks 0 … period − 1 stand for all others.
namespace annulus::plan {

/// Number n of the ranks 0 … n − 1 that stand for all ranks. It divides the ranks, and the period and `unit`,
/// which divides the ranks, divide it. Throws Error when `subset` asks for a period and the plan has none.
int representative_ranks(const Plan& plan, RankSubset subset, int unit = 1);

/// Shifts steps by a number of ranks, as a plan with a period claims that it repeats itself: rank numbers are
/// raised, modulo the ranks, and whole shards take the place of whole shards.
class RankShift {
 public:
  explicit RankShift(const Problem& problem);

  int rank(int rank, int by) const { return ((rank + by) % ranks() + ranks()) % ranks(); }
  /// Rows of `owner`'s shard, as rows of the shard of the rank `by` places on.
  RowRange rows(RowRange rows, int owner, int by) const;
  TensorSlice slice(const TensorSlice& slice, int by) const;
  Compute compute(const Compute& compute, int by) const;
  Step step(const Step& step, int by) const;

  int ranks() const { return static_cast<int>(counts_.size()); }

 private:
  std::vector<std::int64_t> counts_;  // rows, by rank
};

}  // namespace annulus::plan
