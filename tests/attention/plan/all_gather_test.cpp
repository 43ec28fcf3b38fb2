#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/needs/shard_pairs.hpp"
#include "attention/plan/proof.hpp"

namespace annulus::plan {
namespace {

using test::make_problem;
using testing::IsEmpty;

TEST(AllGather, TakesTwoStepsForwardAndOneADistanceBackward) {
  const Problem problem = make_problem(5, 61, "zigzag", "causal");
  EXPECT_EQ(make_all_gather(problem, Pass::forward).steps, 2);
  EXPECT_EQ(make_all_gather(problem, Pass::backward).steps, 4 + 3);
  const Problem near = make_problem(5, 50, "contiguous", "window:10,0");  // one shard back at most
  EXPECT_EQ(make_all_gather(near, Pass::forward).steps, 2);
  EXPECT_EQ(make_all_gather(near, Pass::backward).steps, 1 + 3);
  const Problem alone = make_problem(5, 50, "contiguous", "documents:0,10,20,30,40");
  EXPECT_EQ(make_all_gather(alone, Pass::forward).steps, 1);
  EXPECT_EQ(make_all_gather(alone, Pass::backward).steps, 1);
}

TEST(AllGather, WindowsSendTheRowsThatTheyReach) {
  const Problem problem = make_problem(8, 80, "contiguous", "window:4,2");
  const Plan backward = make_all_gather(problem, Pass::backward);
  EXPECT_THAT(violations(backward), IsEmpty());
  for (int rank = 0; rank < 8; ++rank) {
    const Step step = backward.step(rank, 0);
    for (const Transfer& send : step.sends) {
      const bool behind = send.peer == rank + 1;
      EXPECT_TRUE(behind || send.peer == rank - 1);
      EXPECT_EQ(send.slice.rows, (behind ? RowRange{6, 10} : RowRange{0, 2}));
    }
    EXPECT_EQ(step.sends.size(), rank == 0 || rank == 7 ? 2u : 4u);
  }
  const std::int64_t row = problem.batch * problem.head_dim * problem.kv_heads;
  EXPECT_EQ(traffic(backward, 3).sent[static_cast<int>(Tensor::v)], (4 + 2) * row);
  EXPECT_EQ(traffic(backward, 3).sent[static_cast<int>(Tensor::dv)], (4 + 2) * row);
  EXPECT_EQ(traffic(backward, 0).received[static_cast<int>(Tensor::dk)], 4 * row);
}

// Two documents on all ranks, each rank with rows from the middle of both: what lies between is not sent.
TEST(AllGather, SendsTheRangesOfABalancedShardThatARankNeeds) {
  const Problem problem = make_problem(4, 97, "balanced", "documents:0,60,64,70");
  const ShardPairs pairs(problem);
  std::int64_t needed = 0, hulls = 0;
  for (int q = 0; q < 4; ++q)
    for (int kv = 0; kv < 4; ++kv) {
      if (q == kv) continue;
      hulls += pairs.of(q, kv).kv.size();
      for (const ActiveRows& part : pairs.parts(q, kv)) needed += part.kv.size();
    }
  EXPECT_LT(10 * needed, 9 * hulls);
  for (const Pass pass : test::passes) {
    const Plan plan = make_all_gather(problem, pass);
    test::check_plan(plan);
    EXPECT_EQ(test::rows_sent(plan, Tensor::k), needed);
    if (pass == Pass::backward) {
      EXPECT_EQ(test::rows_sent(plan, Tensor::dv), needed);
    }
  }
}

// The sums of single ranks show that nothing is left out: no rank needs to see the steps of others.
TEST(AllGather, ComputesOfSeveralRangesAreProvedBySums) {
  for (const auto& [name, mask] : {std::pair("all-gather", "documents:0,71,72,74"),
                                   {"hybrid:2x3", "documents:0,6,58"},
                                   {"hybrid:2x3:context-first", "documents:0,1,2,17,35,39,44,84"}}) {
    for (const Pass pass : test::passes) {
      const Plan plan = make_plan(name, make_problem(6, 97, "balanced", mask, 6, 3), pass);
      const Premises premises(plan.problem, pass, plan.steps, 6);
      std::vector<ComputeSum> sums(6);
      int again = 0;  // computes of a pair of shards that the rank computes with already
      for (int rank = 0; rank < 6; ++rank) {
        RankProof proof(premises, rank);
        std::set<std::pair<int, int>> pairs;
        for (const Step& step : rank_steps(plan, rank)) {
          proof.add(step);
          for (const Compute& compute : step.computes)
            again += pairs.emplace(compute.q_shard, compute.kv_shard).second ? 0 : 1;
        }
        const RankFindings found = proof.finish();
        EXPECT_THAT(found.violations, IsEmpty());
        for (std::size_t owner = 0; owner < 6; ++owner) sums[owner] += found.computed[owner];
      }
      EXPECT_GT(again, 3) << name;
      for (int owner = 0; owner < 6; ++owner) {
        const ComputeSum& sum = sums[static_cast<std::size_t>(owner)];
        EXPECT_EQ(sum.partial, 0) << name;
        EXPECT_EQ(sum.weight, expected_weight(premises, owner)) << name;
      }
    }
  }
}

TEST(AllGather, DocumentsStayAmongTheirRanks) {
  // Documents 0:25 on ranks 0 to 2, 25:60 on ranks 2 to 5.
  const Plan plan = make_all_gather(make_problem(6, 60, "contiguous", "documents:0,25"), Pass::forward);
  EXPECT_THAT(violations(plan), IsEmpty());
  for (int rank = 0; rank < 6; ++rank) {
    for (const Transfer& receive : plan.step(rank, 0).receives) {
      const bool first = rank <= 2 && receive.peer<rank, second = rank> 2 && receive.peer >= 2;
      EXPECT_TRUE(first || second) << rank << " from " << receive.peer;
      EXPECT_EQ(receive.slice.rows.begin, rank > 2 && receive.peer == 2 ? 5 : 0);
    }
  }
  EXPECT_EQ(plan.step(5, 0).receives.size(), 2u * 3);
  EXPECT_EQ(plan.step(2, 0).receives.size(), 2u * 2);
}

}  // namespace
}  // namespace annulus::plan
