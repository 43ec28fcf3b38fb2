#include <annulus/attention/plan/schedules.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/support.hpp"

namespace annulus::plan {
namespace {

using test::BlockFile;
using test::make_problem;
using test::rows;
using test::rows_sent;
using testing::IsEmpty;

TEST(Schedules, CausalContiguousShardsStopAtTheLastRank) {
  const int ranks = 5;
  const Problem problem = make_problem(ranks, 43, "contiguous", "causal");
  std::int64_t key_rows = 0, query_rows = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    key_rows += rows(problem, owner) * (ranks - 1 - owner);
    query_rows += rows(problem, owner) * owner;  // queries turn the other way, to earlier ranks
  }
  EXPECT_EQ(rows_sent(make_ring(problem, Pass::forward), Tensor::k), key_rows);
  EXPECT_EQ(rows_sent(make_ring(problem, Pass::backward), Tensor::v), key_rows);
  EXPECT_EQ(rows_sent(make_ring(problem, Pass::backward), Tensor::dv), key_rows);
  EXPECT_EQ(rows_sent(make_burst(problem, Pass::backward), Tensor::q), query_rows);
  EXPECT_EQ(rows_sent(make_burst(problem, Pass::backward), Tensor::dq), query_rows);
}

TEST(Schedules, WindowsInvolveNearRanksOnly) {
  const Problem problem = make_problem(8, 80, "contiguous", "window:10,0");  // one shard back at most
  const Plan forward = make_ring(problem, Pass::forward), backward = make_ring(problem, Pass::backward);
  EXPECT_EQ(forward.steps, 2);
  EXPECT_EQ(backward.steps, 4);
  EXPECT_EQ(rows_sent(forward, Tensor::k), 70);
  EXPECT_EQ(rows_sent(backward, Tensor::dk), 70);
  for (int rank = 0; rank < 8; ++rank) {
    for (const Step& step : rank_steps(backward, rank)) {
      for (const Transfer& send : step.sends)
        EXPECT_EQ(send.peer, send.channel == Channel::gradients ? rank - 1 : rank + 1);
    }
  }
  const Plan burst = make_burst(problem, Pass::backward);
  EXPECT_EQ(burst.steps, 4);
  EXPECT_EQ(rows_sent(burst, Tensor::q), 70);
  EXPECT_EQ(rows_sent(burst, Tensor::dq), 70);
  EXPECT_THAT(burst.step(0, 0).sends, IsEmpty());
  EXPECT_EQ(burst.step(3, 0).sends.front().peer, 2);
}

TEST(Schedules, RanksThatNeedNothingRelay) {
  // Queries of shard 0 see the keys of shards 0, 1 and 3, those of shard 1 the keys of shards 1 and 3.
  const BlockFile file({"0-1 3", "1 3", "2", "3"});
  const Plan plan = make_burst(make_problem(4, 40, "contiguous", file.mask(10)), Pass::backward);
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_EQ(rows_sent(plan, Tensor::q), 30 + 20);   // 0 → 1 → 2 → 3, 1 → 2 → 3
  EXPECT_EQ(rows_sent(plan, Tensor::dq), 30 + 10);  // 1 → 2 → 3 → 0, 3 → 1
  std::vector<Transfer> relayed;
  for (const Step& step : rank_steps(plan, 2)) {
    EXPECT_TRUE(step.computes.empty() || step.computes.front().q_shard == 2);
    EXPECT_THAT(step.clears, IsEmpty());
    for (const Transfer& receive : step.receives) {
      if (receive.slice.tensor == Tensor::dq) relayed.push_back(receive);
    }
  }
  ASSERT_EQ(relayed.size(), 1u);
  EXPECT_EQ(relayed.front().on_receive, OnReceive::store);
}

TEST(Schedules, PlacesWhereNobodyNeedsAnythingAreLeftOut) {
  // Queries of shard 0 see the keys of shards 0, 1 and 3; nobody else sees remote keys.
  const BlockFile file({"0-1 3", "1", "2", "3"});
  const Plan plan = make_burst(make_problem(4, 40, "contiguous", file.mask(10)), Pass::backward);
  EXPECT_EQ(rows_sent(plan, Tensor::q), 20);   // 0 → 1 → 3
  EXPECT_EQ(rows_sent(plan, Tensor::dq), 20);  // 1 → 3 → 0
  EXPECT_EQ(plan.steps, 3 + 2);
  // On zigzag shards a window has neighbours on both sides, however many ranks there are.
  const Problem zigzag = make_problem(16, 320, "zigzag", "window:10,0");
  EXPECT_EQ(make_ring(zigzag, Pass::forward).steps, 3);
  EXPECT_EQ(make_ring(zigzag, Pass::backward).steps, 5);
}

TEST(Schedules, SumsReturnDirectly) {
  const Plan plan = make_ring(make_problem(6, 60, "contiguous", "window:20,0"), Pass::backward);
  // Shard 0 is needed by ranks 1 and 2; rank 2 returns dk and dv of rows 0 to 9 to rank 0 itself.
  const Step step = plan.step(2, 3);
  const auto returning = std::ranges::count_if(step.sends, [](const Transfer& send) {
    return send.slice.owner == 0 && send.peer == 0 && is_gradient(send.slice.tensor);
  });
  EXPECT_EQ(returning, 2);
}

TEST(Schedules, TwoSumsThatArriveTogetherLandApart) {
  // With two shards back, a rank receives a sum to be added to its partial one while its own returns.
  const Plan plan = make_ring(make_problem(8, 80, "contiguous", "window:25,0"), Pass::backward);
  bool together = false;
  for (int rank = 0; rank < 8; ++rank) {
    for (const Step& step : rank_steps(plan, rank)) {
      for (const Transfer& a : step.receives) {
        for (const Transfer& b : step.receives) {
          if (&a == &b || a.slice.tensor != b.slice.tensor || a.on_receive != OnReceive::add ||
              b.on_receive != OnReceive::add)
            continue;
          together = true;
          EXPECT_NE(a.slot, b.slot);
        }
      }
    }
  }
  EXPECT_EQ(together, true) << "the case that this test is about does not occur";
  EXPECT_THAT(violations(plan), IsEmpty());
}

}  // namespace
}  // namespace annulus::plan
