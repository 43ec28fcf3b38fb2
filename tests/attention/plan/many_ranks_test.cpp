// Plans of many ranks that repeat nothing: proved rank by rank, in memory that does not grow with their
// steps.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "support/usage.hpp"

namespace annulus::plan {
namespace {

using test::cpu_seconds, test::peak_memory, test::sanitized;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t rows_of_rank = 2048;

/// `mask`: "window", or "documents" of 700 to 9000 tokens.
Problem many_problem(int ranks, const std::string& layout, const std::string& mask) {
  const std::int64_t tokens = ranks * rows_of_rank;
  std::vector<std::int64_t> starts;
  std::uint64_t random = 1;
  for (std::int64_t start = 0; start < tokens;) {
    starts.push_back(start);
    random = random * 6364136223846793005u + 1442695040888963407u;
    start += 700 + static_cast<std::int64_t>(random >> 33) % 8300;
  }
  return {.topology = Topology::uniform(ranks, 8),
          .layout = Layout::parse(layout),
          .mask = mask == "window" ? Mask::parse("causal+window:8191,0", tokens)
                                   : Mask::with_documents("causal+documents", tokens, starts),
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .dtype = DType::bf16};
}

std::vector<std::string> schedules_for(int ranks, const std::string& layout) {
  std::vector<std::string> names = {"ring",
                                    "burst",
                                    "topology-burst",
                                    "double-ring",
                                    "hierarchical",
                                    "all-gather",
                                    fmt::format("hybrid:8x{}", ranks / 8)};
  if (layout == "contiguous") names.emplace_back("helper-worker");
  return names;
}

Plan many_plan(const std::string& name, const Problem& problem, Pass pass) {
  return make_plan(name, arranged_for(name, problem), pass);
}

TEST(ManyRankPlans, ThatRepeatNothingAreProved) {
  constexpr int ranks = 128;
  for (const std::string mask : {"window", "documents"}) {
    for (const std::string layout : {"contiguous", "zigzag", "striped", "balanced"}) {
      const Problem problem = many_problem(ranks, layout, mask);
      for (const std::string& name : schedules_for(ranks, layout)) {
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          const Plan plan = many_plan(name, problem, pass);
          EXPECT_EQ(plan.period, 0);
          EXPECT_THAT(violations(plan), IsEmpty()) << name << " " << layout << " " << mask;
        }
      }
    }
  }
}

/// The ring's plan of 192 ranks, of which `change` has changed a step of rank 150.
template <class Change>
std::vector<std::string> found_in_many(Pass pass, const Change& change) {
  Plan plan = make_ring(many_problem(192, "striped", "documents"), pass);
  plan.step = [inner = plan.step, change](int rank, int number) {
    Step step = inner(rank, number);
    if (rank == 150 && number == 77) change(step);
    return step;
  };
  return violations(plan);
}

// More ranks than one thread takes, more computes than are looked at one by one.
TEST(ManyRankPlans, WhatIsWrongWithOneOfThemIsNamed) {
  EXPECT_THAT(found_in_many(Pass::forward, [](Step& step) { step.computes.clear(); }),
              testing::ElementsAre("q[150] x kv[73] is never computed"));
  EXPECT_THAT(found_in_many(Pass::forward, [](Step& step) { step.computes.front().heads.end -= 1; }),
              testing::ElementsAre(AllOf(HasSubstr("q[150] x kv[73]: "), HasSubstr("are never computed"))));
  EXPECT_THAT(found_in_many(Pass::forward, [](Step& step) { step.computes.front().q_rows.begin += 9; }),
              testing::ElementsAre(HasSubstr("q[150] x kv[73]: ")));
  EXPECT_THAT(
      found_in_many(Pass::forward, [](Step& step) { step.computes.push_back(step.computes.front()); }),
      testing::ElementsAre(HasSubstr("are computed twice: rank 150, step 77: compute q[150]")));
  EXPECT_THAT(
      found_in_many(Pass::forward, [](Step& step) { std::swap(step.sends[0], step.sends[1]); }),
      Contains(AllOf(HasSubstr("messages from rank 150 to rank 151"), HasSubstr("rank 150, step 77"))));
  EXPECT_THAT(
      found_in_many(Pass::backward, [](Step& step) { step.clears.clear(); }),
      Contains(AllOf(HasSubstr("rank 150, step 77: compute"), HasSubstr("in slot 1, which holds dk[75]"))));
}

// --- 4096 ranks ------------------------------------------------------------------------------------------

/// Proves the plans of 4096 ranks, each in two minutes of two cores, all in 256 MiB.
void prove_4096(const std::string& layout, Pass pass) {
  constexpr int ranks = 4096;
  for (const std::string mask : {"window", "documents"}) {
    const Problem problem = many_problem(ranks, layout, mask);
    for (const std::string& name : schedules_for(ranks, layout)) {
      SCOPED_TRACE(fmt::format("{} {} on {} under {}", name, name_of(pass), layout, mask));
      const double start = cpu_seconds();
      EXPECT_THAT(violations(many_plan(name, problem, pass)), IsEmpty());
      const double seconds = cpu_seconds() - start;
      fmt::print("{:16} {:8} {:12} {:10} {:6.1f} s of one core, {:.0f} MiB\n", name, name_of(pass), layout,
                 mask, seconds, static_cast<double>(peak_memory()) / (1 << 20));
      EXPECT_TRUE(sanitized || seconds < 2 * 120);
      EXPECT_TRUE(sanitized || peak_memory() < 256 << 20);
    }
  }
}

TEST(ManyRankPlans, Of4096RanksAreProvedSlow) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const char* layout : {"contiguous", "zigzag", "block-striped:256"}) prove_4096(layout, pass);
  }
  prove_4096("striped", Pass::backward);
}

}  // namespace
}  // namespace annulus::plan
