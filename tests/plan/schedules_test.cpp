#include <annulus/plan/schedules.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/plan/validate.hpp>

#include "plan/check_plan.hpp"
#include "plan/support.hpp"

namespace annulus::plan {
namespace {

using test::BlockFile;
using test::check_plan;
using test::expect_traffic;
using test::Expected;
using test::layouts;
using test::make_problem;
using test::masks_of;
using test::passes;
using test::rows;
using test::rows_sent;
using test::serves;
using testing::IsEmpty;

void check_schedules(int ranks, std::int64_t tokens, const std::string& mask) {
  for (const std::string& layout : layouts) {
    const Problem problem = make_problem(ranks, tokens, layout, mask);
    for (const std::string& name : schedule_names()) {
      if (!serves(name, problem)) continue;
      for (const Pass pass : passes) {
        SCOPED_TRACE(testing::Message() << name << " " << name_of(pass) << ", " << layout << ", " << mask
                                        << ", " << tokens << " tokens on " << ranks << " ranks");
        check_plan(make_plan(name, problem, pass));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Schedules, AreValidForEveryLayoutAndMask) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t tokens : {1, 5, 37, 64}) {
      for (const std::string& mask : masks_of(tokens)) {
        check_schedules(ranks, tokens, mask);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Schedules, AreValidOnManyRanks) {
  check_schedules(16, 129, "causal");
  check_schedules(23, 90, "dilated:4,7");
  check_schedules(33, 40, "window:9,9");  // ranks without rows
  check_schedules(64, 1000, "documents:0,100,401,402");
}

TEST(Schedules, AreValidForBlockMasks) {
  const BlockFile file({"0-1 5", "", "2 4-5", "0 3", "1 7", "5", "0-7", "3 7"});
  for (int ranks = 1; ranks <= 9; ++ranks) check_schedules(ranks, 45, file.mask(6));
}

TEST(Schedules, DoNothingWhenTheMaskIsEmpty) {
  const BlockFile file({"", ""});
  for (const std::string& name : schedule_names()) {
    for (const Pass pass : passes) {
      const Problem problem = make_problem(4, 10, "contiguous", file.mask(5));
      if (!serves(name, problem)) continue;
      const Plan plan = make_plan(name, problem, pass);
      EXPECT_EQ(plan.steps, 0);
      EXPECT_THAT(violations(plan), IsEmpty());
    }
  }
}

TEST(Schedules, RespectGroupedHeads) {
  for (const int kv_heads : {1, 2, 3, 6}) {
    const Problem problem = make_problem(4, 31, "zigzag", "causal", 6, kv_heads);
    for (const std::string& name : schedule_names()) {
      if (!serves(name, problem)) continue;
      for (const Pass pass : passes) check_plan(make_plan(name, problem, pass));
    }
  }
}

/// BurstEngine Table: what each rank moves under a full mask, exactly, also when the ranks do not divide the
/// tokens. A rank passes on every shard but that of its successor and receives every shard but its own; of
/// the gradients it passes on all but its own, which it receives instead of its predecessor's.
TEST(Schedules, MoveExactlyWhatTheFullMaskNeeds) {
  for (const std::string& layout : layouts) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      const Problem problem = make_problem(ranks, 61, layout, "full");
      const std::int64_t n = 61, width = problem.batch * problem.head_dim;
      const std::int64_t kv = width * problem.kv_heads, q = width * problem.heads;
      const std::int64_t statistic = problem.batch * problem.heads;
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(testing::Message() << layout << " on " << ranks << " ranks");
        const std::int64_t out = n - rows(problem, rank, 1), in = n - rows(problem, rank);
        const std::int64_t gradient_out = n - rows(problem, rank), gradient_in = n - rows(problem, rank, -1);
        Expected ring;
        ring.set(Tensor::k, out * kv, in * kv);
        ring.set(Tensor::v, out * kv, in * kv);
        expect_traffic(make_ring(problem, Pass::forward), rank, ring);
        expect_traffic(make_burst(problem, Pass::forward), rank, ring);
        ring.set(Tensor::dk, gradient_out * kv, gradient_in * kv);
        ring.set(Tensor::dv, gradient_out * kv, gradient_in * kv);
        expect_traffic(make_ring(problem, Pass::backward), rank, ring);
        Expected burst;
        burst.set(Tensor::q, out * q, in * q);
        burst.set(Tensor::d_o, out * q, in * q);
        burst.set(Tensor::lse, out * statistic, in * statistic);
        burst.set(Tensor::d, out * statistic, in * statistic);
        burst.set(Tensor::dq, gradient_out * q, gradient_in * q);
        expect_traffic(make_burst(problem, Pass::backward), rank, burst);
      }
    }
  }
}

TEST(Schedules, OneRankMovesNothing) {
  for (const std::string& name : schedule_names()) {
    for (const Pass pass : passes) {
      const Problem problem = make_problem(1, 17, "zigzag", "causal");
      if (!serves(name, problem)) continue;
      const Plan plan = make_plan(name, problem, pass);
      EXPECT_EQ(plan.steps, 1);
      EXPECT_EQ(traffic(plan, 0).total_sent(), 0);
    }
  }
}

/// Rows of a tensor that all ranks together send, in rows of one head of the whole batch.
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
    for (const Step& step : backward.rank_steps(rank)) {
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
  for (const Step& step : plan.rank_steps(2)) {
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
    for (const Step& step : plan.rank_steps(rank)) {
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
