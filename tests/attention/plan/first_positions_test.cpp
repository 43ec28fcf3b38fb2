// Plans in which the first positions of a sequence alone take part: what sequence-selective checkpointing
// computes again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/error_text.hpp"

namespace annulus::plan::test::first_positions {
namespace {

using annulus::test::documented_refusal;
using annulus::test::schedules_on;

/// What a compute starts from, by which kernels sum in the same order: not the ends of its rows.
using Start = std::tuple<int, int, std::int64_t, std::int64_t, int, int, bool>;
Start start_of(const Compute& c) {
  return {c.q_shard,     c.kv_shard,  c.q_rows.begin,          c.kv_rows.begin,
          c.heads.begin, c.heads.end, c.out_slot == local_slot};
}

/// All computes of a rank, of pairs of rows that take part in `problem`: by the shard of the queries, in
/// their order.
std::vector<Start> computes(const Plan& plan, int rank, const Problem& problem) {
  std::vector<Start> starts;
  for (const Step& step : rank_steps(plan, rank)) {
    for (const Compute& c : step.computes)
      if (!problem.mask.is_empty(problem.shard(c.q_shard), problem.shard(c.kv_shard)))
        starts.push_back(start_of(c));
  }
  std::ranges::stable_sort(starts, {}, [](const Start& start) { return std::get<0>(start); });
  return starts;
}

/// A plan of the first positions is valid, and does what the whole plan does in the same order, less of it.
void check(const std::string& schedule, const Problem& all, std::int64_t positions) {
  SCOPED_TRACE(fmt::format("{}, {}, {}, {} of {} positions on {}", schedule, all.layout.to_string(),
                           all.mask.to_string(), positions, all.mask.tokens(), all.topology.to_string()));
  const Plan whole = make_plan(schedule, all, Pass::forward);
  Problem problem = whole.problem;  // with the grid of a hybrid
  problem.positions = positions;
  const Plan plan = make_plan(schedule, problem, Pass::forward);
  check_plan(plan);
  EXPECT_LE(plan.steps, whole.steps);
  for (int rank = 0; rank < all.ranks(); ++rank) {
    EXPECT_EQ(computes(plan, rank, problem), computes(whole, rank, problem)) << "rank " << rank;
    EXPECT_LE(traffic(plan, rank).sent_bytes, traffic(whole, rank).sent_bytes) << "rank " << rank;
  }
}

/// Masks under which no query attends to later keys.
std::vector<std::string> causal_masks(const BlockFile& blocks) {
  return {"causal",
          "window:20,0",
          "window:1,0",
          "dilated:4,3",
          "dilated:3,11",
          "documents:0,1,17,40",
          "dilated:2,1",
          "documents:0,30+window:9,0",
          "causal+" + blocks.mask(9)};
}

TEST(FirstPositions, EverySchedulePlansThemInTheOrderOfAllPositions) {
  const BlockFile blocks({"0", "0-1", "", "0 3", "2 4", "1 5", "0 4 6"});
  constexpr std::int64_t tokens = 61;
  const std::vector<std::int64_t> cuts = {1, 2, 17, 30, 45, 60, 61};
  int checked = 0;
  std::size_t number = 0;
  for (const auto& [nodes, ranks_per_node] : {std::pair{1, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 2}, {2, 4}}) {
    for (const std::string& schedule : schedules_on(nodes * ranks_per_node)) {
      for (const std::string& layout : layouts) {
        for (const std::string& mask : causal_masks(blocks)) {
          Problem problem = on_nodes(nodes, ranks_per_node, tokens, layout, mask);
          problem.heads = 8;
          if (documented_refusal(schedule, problem)) continue;
          if (++number % 3 != 0) continue;  // with seven cuts: each meets each schedule, layout and mask
          check(schedule, problem, cuts[number / 3 % cuts.size()]);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(FirstPositions, RanksWithoutThemNeitherComputeNorSend) {
  Problem problem = on_nodes(1, 4, 64, "contiguous", "causal");
  problem.positions = 30;  // shards of 16: all of rank 0, 14 rows of rank 1
  for (const std::string schedule : {"ring", "burst", "topology-burst", "all-gather", "double-ring:2"}) {
    SCOPED_TRACE(schedule);
    const Plan plan = make_plan(schedule, problem, Pass::forward);
    EXPECT_EQ(rows_sent(plan, Tensor::k), 16);  // the keys of rank 0 to rank 1
    EXPECT_EQ(rows_sent(plan, Tensor::q), 0);
    EXPECT_EQ(traffic(plan, 0).pairs, 4 * 16 * 17 / 2);
    EXPECT_EQ(traffic(plan, 1).pairs, 4 * (30 * 31 / 2 - 16 * 17 / 2));
    for (const int rank : {2, 3}) {
      EXPECT_EQ(traffic(plan, rank).pairs, 0);
      EXPECT_EQ(traffic(plan, rank).sent_bytes + traffic(plan, rank).received_bytes, 0);
    }
  }
}

TEST(FirstPositions, StripedShardsStayBalanced) {
  const auto imbalance_of = [](const std::string& layout) {
    Problem problem = on_nodes(1, 4, 4096, layout, "causal");
    problem.positions = 2048;
    return worker_imbalance(make_plan("ring", problem, Pass::forward));
  };
  EXPECT_NEAR(imbalance_of("striped"), 1, 2e-3);
  // Quarters of the triangle: 1, 3, 5 and 7 sixteenths.
  EXPECT_NEAR(imbalance_of("zigzag"), 7 / 4., 2e-3);
  // Two ranks share it, 1 : 3.
  EXPECT_NEAR(imbalance_of("contiguous"), 3, 2e-3);
}

TEST(FirstPositions, ManyRanksHaveAPeriodStill) {
  Problem problem = on_nodes(64, 8, 1 << 18, "striped", "causal");
  problem.positions = (1 << 17) + 5;
  const Plan plan = make_plan("topology-burst", problem, Pass::forward);
  EXPECT_EQ(plan.period, 8);
  EXPECT_THAT(violations(plan), testing::IsEmpty());
}

TEST(FirstPositions, ErrorsSayWhatIsWrong) {
  const auto error_of = [](const std::string& mask, std::int64_t positions) {
    Problem problem = make_problem(2, 64, "striped", mask);
    problem.positions = positions;
    return error_text([&] { make_plan("ring", problem, Pass::forward); });
  };
  EXPECT_EQ(error_of("causal", 65),
            "positions is 65: of a sequence of 64 tokens at most all take part; 0 stands for all");
  EXPECT_EQ(error_of("causal", -1),
            "positions is -1: of a sequence of 64 tokens at most all take part; 0 stands for all");
  EXPECT_EQ(error_of("window:3,1", 32),
            "positions is 32, but under mask window:3,1 queries attend to later keys, which would take no "
            "part: join causal to the mask");
}

TEST(FirstPositions, AreOfTheForwardPassUnderEverySchedule) {
  Problem problem = make_problem(2, 64, "contiguous", "causal");
  for (const std::string& schedule : schedules_on(2)) {
    SCOPED_TRACE(schedule);
    Problem first = arranged_for(schedule, problem);
    first.positions = 40;
    EXPECT_THAT(error_text([&] { make_plan(schedule, first, Pass::backward); }),
                testing::HasSubstr("a backward pass of the first 40 positions alone is not planned: only "
                                   "attention's output is computed again for them; use the forward pass"));
  }
}

TEST(FirstPositions, AreNamedInWhatRanksTellOfTheirPlan) {
  Problem problem = make_problem(2, 64, "striped", "causal");
  EXPECT_EQ(make_plan("ring", problem, Pass::forward).pass_text(), "forward");
  problem.positions = 40;
  EXPECT_EQ(make_plan("ring", problem, Pass::forward).pass_text(), "forward of the first 40 positions");
}

}  // namespace
}  // namespace annulus::plan::test::first_positions
