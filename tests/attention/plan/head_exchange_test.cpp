#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/error_text.hpp"

/// Ulysses and hybrids.
namespace annulus::plan {
namespace {

using test::make_problem;
using testing::HasSubstr;

TEST(Hybrid, CoversTheSequenceByContextGroups) {
  for (const GridPlacement placement : {GridPlacement::head_first, GridPlacement::context_first}) {
    Problem problem = make_problem(6, 61, "zigzag", "causal");
    problem.grid = {3, placement};
    for (int ring_rank = 0; ring_rank < 2; ++ring_rank) {
      const PositionMap group = problem.layout.shard(61, 2, ring_rank);
      std::int64_t row = 0;
      for (int place = 0; place < 3; ++place) {
        const int rank = problem.grid.rank(ring_rank, place, 6);
        EXPECT_EQ(rank,
                  placement == GridPlacement::head_first ? 3 * ring_rank + place : 2 * place + ring_rank);
        EXPECT_EQ(problem.grid.ring_rank(rank, 6), ring_rank);
        EXPECT_EQ(problem.grid.ulysses_rank(rank, 6), place);
        const PositionMap shard = problem.shard(rank);
        EXPECT_NEAR(static_cast<double>(shard.count), static_cast<double>(group.count) / 3, 1);
        for (std::int64_t i = 0; i < shard.count; ++i) EXPECT_EQ(shard(i), group(row++));
      }
      EXPECT_EQ(row, group.count);
    }
  }
}

TEST(Hybrid, PlacementDecidesWhatCrossesNodes) {
  // 4 nodes of 2 ranks.
  const Problem problem = make_problem(8, 64, "zigzag", "full", 8, 8);
  const auto between = [&](const char* name) {
    return traffic(make_plan(name, problem, Pass::forward), 0).sent_bytes_inter_node;
  };
  const std::int64_t row = 8 * problem.batch * 4,
                     d = problem.head_dim;                // bytes of a number for each row of a rank
  EXPECT_EQ(between("hybrid:2x4"), 2 * 3 * row * 8 * d);  // the ring
  EXPECT_EQ(between("hybrid:4x2:context-first"), row * 6 * (4 * d + 1));  // the exchange of heads
}

TEST(Hybrid, OneRankAGroupIsTheRing) {
  const Problem problem = make_problem(5, 41, "zigzag", "causal");
  for (const Pass pass : test::passes) {
    Plan hybrid = make_plan("hybrid:1x5", problem, pass);
    EXPECT_EQ(hybrid.schedule, "hybrid:1x5");
    hybrid.schedule = "ring";
    EXPECT_EQ(hybrid, make_ring(problem, pass));
  }
}

TEST(Hybrid, StepsAreThoseOfTheRingAndTheExchange) {
  const Problem problem = make_problem(8, 64, "zigzag", "causal", 8, 8);
  EXPECT_EQ(make_ulysses(problem, Pass::forward).steps, 1 + 8 + 1);
  EXPECT_EQ(make_ulysses(problem, Pass::backward).steps, 1 + 8 + 2);
  EXPECT_EQ(make_plan("hybrid:2x4", problem, Pass::forward).steps, 1 + 3 + 2 + 1);
}

TEST(Hybrid, NamesWhatIsWrongAndWhatToUse) {
  const auto error = [](const char* name, int heads = 4) {
    const Problem problem = make_problem(8, 64, "zigzag", "causal", heads, heads);
    return error_text([&] { make_plan(name, problem, Pass::forward, "--schedule"); });
  };
  EXPECT_EQ(error("hybrid:2x4:head-first"), "no error");
  EXPECT_THAT(error("ulysses"), HasSubstr("4 query heads are too few for the 8 ranks"));
  EXPECT_THAT(error("ulysses"), HasSubstr("use schedule hybrid:4x2"));
  EXPECT_THAT(error("ulysses", 1), HasSubstr("use schedule ring or burst"));
  EXPECT_THAT(error("hybrid:8x1", 3), HasSubstr("use schedule hybrid:2x4"));
  EXPECT_THAT(error("hybrid:2x3"), HasSubstr("--schedule: 'hybrid:2x3' is for 6 ranks, but there are 8"));
  for (const char* name :
       {"hybrid", "hybrid:", "hybrid:8", "hybrid:2x", "hybrid:0x8", "hybrid:2y4", "hybrid:2x4x1"}) {
    EXPECT_THAT(error(name), HasSubstr("write hybrid:HxC")) << name;
  }
  EXPECT_THAT(error("hybrid:2x4:sideways"), HasSubstr("there is no placement 'sideways'"));
  Problem problem = make_problem(8, 64, "zigzag", "causal");
  problem.grid.ulysses_degree = 3;
  EXPECT_THAT(error_text([&] { make_hybrid(problem, Pass::forward); }), HasSubstr("Ulysses groups of 3"));
}

TEST(Hybrid, ArrangesTheProblem) {
  const Problem problem = make_problem(8, 64, "zigzag", "causal");
  EXPECT_EQ(arranged_for("ring", problem).grid, Grid{});
  EXPECT_EQ(arranged_for("hybrid:4x2:context-first", problem).grid, (Grid{4, GridPlacement::context_first}));
  const Plan plan = make_plan("hybrid:4x2:context-first", problem, Pass::forward);
  EXPECT_EQ(plan.problem.grid, (Grid{4, GridPlacement::context_first}));
  EXPECT_EQ(plan.schedule, "hybrid:4x2:context-first");
  EXPECT_THAT(to_string(plan, 0), HasSubstr("in Ulysses groups of 4 (context-first)"));
}

}  // namespace
}  // namespace annulus::plan
