#include "attention/plan/period.hpp"

#include <numeric>

#include <annulus/base/error.hpp>

namespace annulus::plan {

namespace {

/// Up to so many ranks a plan is small.
constexpr int few_ranks = 64;

}  // namespace

int representative_ranks(const Plan& plan, RankSubset subset, int unit) {
  const int ranks = plan.problem.ranks();
  if (subset == RankSubset::every_rank ||
      (subset == RankSubset::automatic && (plan.period == 0 || ranks <= few_ranks)))
    return ranks;
  require(plan.period > 0 && ranks % plan.period == 0,
          "plan '{}' ({}): a period of {} ranks is none of the {} ranks: take every rank", plan.schedule,
          name_of(plan.pass), plan.period, ranks);
  ANNULUS_ASSERT(ranks % unit == 0);
  return std::lcm(plan.period, unit);
}

RankShift::RankShift(const Problem& problem) {
  counts_.reserve(static_cast<std::size_t>(problem.ranks()));
  for (int rank = 0; rank < problem.ranks(); ++rank) counts_.push_back(problem.shard(rank).count);
}

RowRange RankShift::rows(RowRange rows, int owner, int by) const {
  const auto count = [this](int rank) { return counts_[static_cast<std::size_t>(rank)]; };
  const bool whole = rows.begin == 0 && rows.end == count(owner);
  return whole ? RowRange{0, count(rank(owner, by))} : rows;
}

TensorSlice RankShift::slice(const TensorSlice& slice, int by) const {
  return {slice.tensor, rank(slice.owner, by), rows(slice.rows, slice.owner, by), slice.heads};
}

Compute RankShift::compute(const Compute& compute, int by) const {
  Compute other = compute;
  other.q_shard = rank(compute.q_shard, by);
  other.kv_shard = rank(compute.kv_shard, by);
  other.q_rows = rows(compute.q_rows, compute.q_shard, by);
  other.kv_rows = rows(compute.kv_rows, compute.kv_shard, by);
  return other;
}

Step RankShift::step(const Step& step, int by) const {
  Step other = step;
  for (Clear& clear : other.clears) clear.slice = slice(clear.slice, by);
  for (auto* transfers : {&other.sends, &other.receives}) {
    for (Transfer& transfer : *transfers) {
      transfer.slice = slice(transfer.slice, by);
      transfer.peer = rank(transfer.peer, by);
    }
  }
  for (Compute& each : other.computes) each = compute(each, by);
  return other;
}

}  // namespace annulus::plan
