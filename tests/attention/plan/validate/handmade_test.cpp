#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/support.hpp"
#include "support/error_text.hpp"

/// Plans of schedules that have no builder yet, written by hand: the validator must not be made for rings
/// only.
namespace annulus::plan {
namespace {

using test::EditedPlan;
using test::make_problem;
using testing::Contains;
using testing::IsEmpty;

constexpr HeadRange heads = {0, 4}, kv_heads = {0, 2};

/// DistFlashAttn's idea on two ranks, causal: rank 1 has more to do, so rank 0 takes the last two of its
/// queries against its own keys and returns their (O, LSE), which rank 1 merges.
EditedPlan helper_worker() {
  EditedPlan plan(Pass::forward, make_problem(2, 8, "contiguous", "causal"), 4);
  plan.message(1, 0, {Tensor::q, 1, {2, 4}, heads}, 0, local_slot, 1);
  plan.message(0, 1, {Tensor::k, 0, {0, 4}, kv_heads}, 0, local_slot, 1);
  plan.message(0, 1, {Tensor::v, 0, {0, 4}, kv_heads}, 0, local_slot, 1);
  plan.at(0, 0).computes = {{0, 0, {0, 4}, {0, 4}, heads}};
  plan.at(1, 0).computes = {{1, 1, {0, 4}, {0, 4}, heads}};
  plan.at(1, 1).computes = {{1, 0, {0, 2}, {0, 4}, heads, local_slot, 1}};
  const TensorSlice o = {Tensor::o, 1, {2, 4}, heads}, lse = {Tensor::lse, 1, {2, 4}, heads};
  plan.at(0, 1).clears = {{o, 1}, {lse, 1}};
  plan.at(0, 1).computes = {{1, 0, {2, 4}, {0, 4}, heads, 1, local_slot, 1}};
  plan.message(0, 1, o, 2, 1, 1, OnReceive::merge, local_slot, Channel::gradients);
  plan.message(0, 1, lse, 2, 1, 1, OnReceive::merge, local_slot, Channel::gradients);
  return plan;
}

TEST(HandmadePlans, HelpersReturnOutputsToBeMerged) {
  EXPECT_THAT(found(helper_worker()), IsEmpty());
}

TEST(HandmadePlans, AMergeNeedsBothParts) {
  EditedPlan plan = helper_worker();
  plan.at(0, 2).sends.pop_back();
  plan.at(1, 2).receives.pop_back();
  EXPECT_THAT(found(plan),
              Contains(mentions("rank 1, step 3: receive o[1]", "no lse arrives with it to be merged")));
  plan = helper_worker();
  plan.at(1, 2).receives.back().slot = 2;  // lse lands elsewhere
  EXPECT_THAT(found(plan), Contains(mentions("no lse arrives with it")));
}

TEST(HandmadePlans, OutputAndLseMustStemFromTheSameComputes) {
  EditedPlan plan = helper_worker();
  Clear stale = plan.at(0, 1).clears.back();
  plan.at(0, 2).clears = {stale};  // forgets what lse has
  EXPECT_THAT(found(plan), Contains(mentions("o and lse in slot 1 hold different contributions")));
}

TEST(HandmadePlans, ComputesNeedOutputAndLseOfTheSameComputes) {
  EditedPlan plan = helper_worker();
  Compute late = plan.at(0, 1).computes.front();
  plan.at(0, 1).computes.front().kv_rows = {0, 2};
  late.kv_rows = {2, 4};
  plan.at(0, 2).computes = {late};
  plan.at(0, 2).clears = {plan.at(0, 1).clears.back()};  // o keeps keys 0:2, lse does not
  EXPECT_THAT(found(plan),
              Contains(mentions("rank 0, step 2: compute q[1] rows 2:4 x kv[0] rows 2:4 heads 0:4",
                                "o and lse in slot 1")));
}

TEST(HandmadePlans, AMergeIntoATargetThatMisfitsIsFound) {
  EditedPlan plan = helper_worker();
  for (Transfer& receive : plan.at(1, 2).receives) receive.target = 3;
  EXPECT_THAT(found(plan),
              Contains(mentions("rank 1, step 3: receive o[1]", "in slot 3, which is undefined")));
}

TEST(HandmadePlans, ReturningTwiceIsFound) {
  EditedPlan plan = helper_worker();
  plan.add_step();
  for (const Tensor tensor : {Tensor::o, Tensor::lse}) {
    plan.message(0, 1, {tensor, 1, {2, 4}, heads}, 3, 1, 1, OnReceive::merge, local_slot, Channel::gradients);
  }
  EXPECT_THAT(found(plan), testing::ElementsAre(mentions("rank 0, step 3: send o[1]", "twice"),
                                                mentions("rank 0, step 3: send lse[1]", "twice")));
}

TEST(HandmadePlans, OutputAndLseLeaveTogether) {
  EditedPlan plan = helper_worker();
  plan.add_step();
  for (int rank = 0; rank < 2; ++rank) {  // lse a step later
    auto& early = rank == 0 ? plan.at(rank, 2).sends : plan.at(rank, 2).receives;
    auto& late = rank == 0 ? plan.at(rank, 3).sends : plan.at(rank, 3).receives;
    late.push_back(early.back());
    early.pop_back();
    late.back().post = 3;
    late.back().wait = 4;
  }
  EXPECT_THAT(found(plan), Contains(mentions("rank 0, step 2: send o[1]", "no lse leaves with it")));
}

TEST(HandmadePlans, AForgottenReturnIsFound) {
  EditedPlan plan = helper_worker();
  plan.at(0, 2) = plan.at(1, 2) = {};
  EXPECT_THAT(found(plan),
              testing::ElementsAre(mentions("the sum o[1] rows 2:4 heads 0:4 in slot 1 is lost"),
                                   mentions("the sum lse[1] rows 2:4 heads 0:4 in slot 1 is lost")));
}

/// All ranks send K and V to all others at once, in two halves of the rows each.
TEST(HandmadePlans, AllGatherInHalves) {
  const int ranks = 3;
  const Problem problem = make_problem(ranks, 20, "zigzag", "window:9,2");
  EditedPlan plan(Pass::forward, problem, 2);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = problem.shard(rank).count, middle = count / 2;
    plan.at(rank, 0).computes = {{rank, rank, {0, count}, {0, count}, heads}};
    for (int other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      const std::int64_t rows = problem.shard(other).count;
      for (int half = 0; half < 2; ++half) {
        const RowRange sent = half == 0 ? RowRange{0, middle} : RowRange{middle, count};
        const Slot slot = 1 + 2 * rank + half;
        plan.message(rank, other, {Tensor::k, rank, sent, kv_heads}, 0, local_slot, slot);
        plan.message(rank, other, {Tensor::v, rank, sent, kv_heads}, 0, local_slot, slot);
        plan.at(other, 1).computes.push_back({other, rank, {0, rows}, sent, heads, local_slot, slot});
      }
    }
  }
  EXPECT_THAT(found(plan), IsEmpty());
  plan.at(2, 1).computes.front().kv_slot = 2;  // the other half
  EXPECT_THAT(found(plan), Contains(mentions("in slot 2, which holds k[0]")));
}

/// DeepSpeed-Ulysses on two ranks: each has one half of the heads for all rows; outputs return by store.
EditedPlan ulysses() {
  const Problem problem = make_problem(2, 9, "striped", "causal");
  EditedPlan plan(Pass::forward, problem, 3);
  for (int rank = 0; rank < 2; ++rank) {
    const int other = 1 - rank;
    const HeadRange mine = {2 * rank, 2 * rank + 2}, mine_kv = {rank, rank + 1};
    const RowRange own = {0, problem.shard(rank).count}, remote = {0, problem.shard(other).count};
    plan.message(other, rank, {Tensor::q, other, remote, mine}, 0, local_slot, 1);
    plan.message(other, rank, {Tensor::k, other, remote, mine_kv}, 0, local_slot, 1);
    plan.message(other, rank, {Tensor::v, other, remote, mine_kv}, 0, local_slot, 1);
    plan.at(rank, 0).computes = {{rank, rank, own, own, mine}};
    const TensorSlice o = {Tensor::o, other, remote, mine}, lse = {Tensor::lse, other, remote, mine};
    plan.at(rank, 1).clears = {{o, 1}, {lse, 1}};
    plan.at(rank, 1).computes = {{rank, other, own, remote, mine, local_slot, 1, local_slot},
                                 {other, rank, remote, own, mine, 1, local_slot, 1},
                                 {other, other, remote, remote, mine, 1, 1, 1}};
    // Kept for a step, so that the sums are complete before they go.
  }
  plan.add_step();
  for (int rank = 0; rank < 2; ++rank) {
    const int other = 1 - rank;
    const HeadRange mine = {2 * rank, 2 * rank + 2};
    const RowRange remote = {0, problem.shard(other).count};
    plan.message(rank, other, {Tensor::o, other, remote, mine}, 2, 1, local_slot);
    plan.message(rank, other, {Tensor::lse, other, remote, mine}, 2, 1, local_slot);
  }
  return plan;
}

TEST(HandmadePlans, HeadsAreExchangedForRows) {
  EXPECT_THAT(found(ulysses()), IsEmpty());
}

TEST(HandmadePlans, StoringOverHomeSumsIsFound) {
  EditedPlan plan = ulysses();
  // The exchanged half of the heads is sent back over the half that rank 0 computed itself.
  plan.at(1, 1).clears[0].slice.heads = plan.at(1, 1).clears[1].slice.heads = {0, 4};
  for (Transfer& send : plan.at(1, 2).sends) send.slice.heads = {0, 4};
  for (Transfer& receive : plan.at(0, 2).receives) receive.slice.heads = {0, 4};
  EXPECT_THAT(found(plan),
              Contains(mentions("overwrites contributions that the local buffer already holds")));
}

TEST(HandmadePlans, ComputingWhereAReceiveLandsAtHomeIsFound) {
  EditedPlan plan = ulysses();
  plan.at(0, 2).computes = {
      plan.at(0, 1).computes[0]};  // heads 0:2 of the local buffer, while heads 2:4 land there
  plan.at(0, 1).computes.erase(plan.at(0, 1).computes.begin());
  plan.at(0, 2).computes.front().kv_slot = 1;
  EXPECT_THAT(found(plan), IsEmpty());  // other heads, so nothing clashes
  for (Transfer& receive : plan.at(0, 2).receives) receive.slice.heads = {1, 4};
  for (Transfer& send : plan.at(1, 2).sends) send.slice.heads = {1, 4};
  plan.at(1, 1).clears[0].slice.heads = plan.at(1, 1).clears[1].slice.heads = {1, 4};
  EXPECT_THAT(found(plan),
              Contains(mentions("rank 0, step 2: compute q[0]", "in local while it is received into")));
}

TEST(HandmadePlans, RanksMaySendToThemselves) {
  EditedPlan plan(Pass::forward, make_problem(1, 6, "contiguous", "causal"), 2);
  plan.message(0, 0, {Tensor::k, 0, {0, 6}, kv_heads}, 0, local_slot, 1);
  plan.message(0, 0, {Tensor::v, 0, {0, 6}, kv_heads}, 0, local_slot, 1);
  plan.at(0, 1).computes = {{0, 0, {0, 6}, {0, 6}, heads, local_slot, 1}};
  EXPECT_THAT(found(plan), IsEmpty());
}

}  // namespace
}  // namespace annulus::plan
