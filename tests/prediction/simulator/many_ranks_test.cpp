// Clusters far larger than any that tests run on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/choose.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "support/error_text.hpp"
#include "support/usage.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;
using test::cpu_seconds, test::peak_memory, test::sanitized;
using ::testing::HasSubstr;

constexpr int ranks = 8192;

plan::Problem problem_of(std::string_view layout, std::string_view mask, std::int64_t tokens) {
  return {.topology = Topology::uniform(ranks, 8),
          .layout = Layout::parse(layout),
          .mask = Mask::parse(mask, tokens),
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .dtype = DType::bf16};
}

constexpr std::int64_t two_gibibytes = std::int64_t{2} << 30;

TEST(ManyRanks, AreChosenProvedAndSimulatedSlow) {
  for (const std::int64_t tokens : {16'777'216, 16'000'000}) {
    const double start = cpu_seconds();
    plan::Problem problem = problem_of("contiguous", "causal", tokens);
    const std::array passes = {Pass::backward};
    const ScheduleChoice choice = choose(problem, "auto", "auto", passes, default_cluster());
    problem.layout = choice.layout;
    const plan::Plan plan = plan::make_plan(choice.schedule, problem, Pass::backward);
    EXPECT_THAT(plan::violations(plan), ::testing::IsEmpty());
    const Simulation simulation = simulate(plan, default_cluster());
    EXPECT_EQ(simulation.time, choice.seconds);
    ASSERT_EQ(std::ssize(simulation.ranks), ranks);
    const PositionMap all = Layout().shard(tokens, 1, 0);
    std::int64_t pairs = 0;
    for (const RankSummary& rank : simulation.ranks) pairs += rank.pairs;
    EXPECT_EQ(pairs, problem.mask.pairs(all, all) * problem.heads);
    EXPECT_TRUE(sanitized || cpu_seconds() - start < 10);
    EXPECT_TRUE(sanitized || peak_memory() < two_gibibytes);
  }
}

TEST(ManyRanks, OfEverySchedulePlansAreProvedAndSimulatedSlow) {
  for (const char* name :
       {"ring", "burst", "topology-burst", "hierarchical", "double-ring", "all-gather", "hybrid:8x1024"}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(pass)));
      // Under a causal mask these two send the rows alone that are needed, which differ by rank.
      const bool sends_parts =
          std::string_view(name) == "all-gather" || std::string_view(name) == "hybrid:8x1024";
      const char* mask = sends_parts ? "full" : "causal";
      const plan::Plan plan = plan::make_plan(name, problem_of("zigzag", mask, 16'777'216), pass);
      ASSERT_GT(plan.period, 0);
      EXPECT_THAT(plan::violations(plan), ::testing::IsEmpty());
      EXPECT_GT(simulate(plan, default_cluster(), Detail::times).time, 0);
      EXPECT_TRUE(sanitized || peak_memory() < two_gibibytes);
    }
  }
}

TEST(ManyRanks, FewStepsAreWalkedThroughSlow) {
  for (const char* mask : {"window:4096,0", "documents:0,5000000,5003000,9000000+window:3000,0"}) {
    for (const char* name : {"ring", "topology-burst", "all-gather", "helper-worker"}) {
      SCOPED_TRACE(std::string(name) + " under " + mask);
      const plan::Plan plan =
          plan::make_plan(name, problem_of("contiguous", mask, 16'777'216), Pass::backward);
      EXPECT_LT(plan.steps, 64);
      EXPECT_THAT(plan::violations(plan), ::testing::IsEmpty());
      EXPECT_GT(simulate(plan, default_cluster(), Detail::times).time, 0);
      EXPECT_TRUE(sanitized || peak_memory() < two_gibibytes);
    }
  }
}

TEST(ManyRanks, ThatRepeatNothingAreRefusedBeforeMemoryIsFull) {
  const plan::Plan plan = plan::make_ring(problem_of("contiguous", "causal", 16'777'216), Pass::forward);
  EXPECT_THAT(error_text([&] { simulate(plan, default_cluster()); }),
              ::testing::AllOf(HasSubstr("too many to simulate"), HasSubstr("zigzag")));
}

}  // namespace
}  // namespace annulus::simulator
