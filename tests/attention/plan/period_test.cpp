// Plans that repeat themselves: proved on the ranks of a period as on all.
#include "attention/plan/period.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/validate/mutations.hpp"
#include "support/error_text.hpp"

namespace annulus::plan {
namespace {

using test::make_problem;
using test::repeats;
using test::with_period;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int ranks = test::mutated_ranks;

std::vector<Plan> periodic_plans(std::int64_t tokens) {
  std::vector<Plan> plans;
  std::vector<std::string> names = schedule_names();
  names.insert(names.end(), {"hybrid:2x3", "hybrid:3x2", "double-ring:3"});
  for (const Pass pass : test::passes) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:2", "balanced"}) {
      for (const char* mask : {"full", "causal", "window:3,0"}) {
        const Problem problem = make_problem(ranks, tokens, layout, mask, 6, 3);
        for (const std::string& name : names) {
          if (!test::serves(name, problem)) continue;
          if (auto plan = with_period(make_plan(name, problem, pass))) plans.push_back(std::move(*plan));
        }
      }
    }
  }
  EXPECT_GT(plans.size(), 60u);
  return plans;
}

std::string describe(const Plan& plan) {
  return plan.schedule + " " + std::string(name_of(plan.pass)) + " on " + plan.problem.layout.to_string() +
         " under " + plan.problem.mask.to_string() + ", period " + std::to_string(plan.period);
}

/// Ranks of one period whose steps can be changed, and with them those of all others.
struct EditedPeriod {
  explicit EditedPeriod(const Plan& plan) : plan(plan), shift(plan.problem) {
    for (int rank = 0; rank < plan.period; ++rank) steps.push_back(rank_steps(plan, rank));
  }
  Plan finish() const {
    Plan finished = plan;
    finished.step = [*this](int rank, int step) {
      const int first = rank % plan.period;
      return shift.step(steps.at(static_cast<std::size_t>(first)).at(static_cast<std::size_t>(step)),
                        rank - first);
    };
    return finished;
  }
  Plan plan;
  RankShift shift;
  test::Steps steps;  // [rank of the period][step]
};

TEST(Period, BuildersClaimOnlyWhatIsTrue) {
  for (const std::int64_t tokens : {24, 23, 61}) {
    for (const Plan& plan : periodic_plans(tokens)) {
      const Plan built = make_plan(plan.schedule, plan.problem, plan.pass);
      if (built.period == 0) continue;
      EXPECT_TRUE(repeats(built, built.period)) << describe(built);
    }
  }
}

// Each rank of a cut for documents has documents of its own.
TEST(Period, IsNotClaimedWhereACutFollowsDocuments) {
  const Problem problem = make_problem(ranks, 61, "balanced", "documents:0,5,30,31,45", 6, 3);
  for (const Pass pass : test::passes) {
    for (const std::string& name : schedule_names()) {
      if (!test::serves(name, problem)) continue;
      const Plan plan = make_plan(name, problem, pass);
      EXPECT_EQ(plan.period % ranks, 0) << describe(plan);
      EXPECT_FALSE(with_period(plan)) << describe(plan);
    }
  }
}

TEST(Period, IsProvedOnItsRanks) {
  for (const std::int64_t tokens : {24, 23, 61}) {
    for (const Plan& plan : periodic_plans(tokens))
      EXPECT_THAT(violations(plan, RankSubset::period), IsEmpty()) << describe(plan);
  }
}

/// A few of the plans, of different schedules.
std::vector<Plan> subjects() {
  std::vector<Plan> plans;
  for (Plan& plan : periodic_plans(23)) {
    const bool taken = std::ranges::any_of(
        plans, [&](const Plan& other) { return other.schedule == plan.schedule && other.pass == plan.pass; });
    if (!taken) plans.push_back(std::move(plan));
  }
  return plans;
}

/// Whatever is changed in all periods alike, the ranks of one show it if and only if all ranks do.
TEST(Period, ShowsWhatAllRanksShow) {
  for (const Plan& plan : subjects()) {
    EditedPeriod edited(plan);
    test::for_each_mutation(edited.steps, [&](const test::Steps& steps, bool, const std::string& what) {
      // Whole shards may differ by a row, so a row less is not the same everywhere.
      if (HasFailure() || what.starts_with("last row") || what.starts_with("first row")) return;
      edited.steps = steps;
      const Plan changed = edited.finish();
      const auto of_all = violations(changed, RankSubset::every_rank),
                 of_period = violations(changed, RankSubset::period);
      EXPECT_EQ(of_all.empty(), of_period.empty())
          << describe(plan) << ": " << what << testing::PrintToString(of_all)
          << testing::PrintToString(of_period);
    });
  }
}

TEST(Period, OneRankThatDoesOtherwiseIsNamed) {
  const Plan plan = *with_period(make_ring(make_problem(ranks, 24, "zigzag", "causal"), Pass::backward));
  for (int rank = plan.period; rank < ranks; ++rank) {
    for (int step = 0; step < plan.steps; ++step) {
      Plan broken = plan;
      broken.step = [&](int r, int s) {
        Step made = plan.step(r, s);
        if (r == rank && s == step) made.computes.clear(), made.sends.clear();
        return made;
      };
      if (broken.step(rank, step) == plan.step(rank, step)) continue;
      EXPECT_THAT(violations(broken, RankSubset::period),
                  Contains(HasSubstr("rank " + std::to_string(rank) + ", step " + std::to_string(step) +
                                     ": is not what rank 0 does")));
    }
  }
}

TEST(Period, MasksThatNobodyComputesAreLookedAtForAllRanks) {
  // Without its last hop, every rank misses the keys behind it; under a causal mask the ranks 1 … 5 lack
  // them.
  Plan plan = *with_period(make_ring(make_problem(ranks, 24, "striped", "causal"), Pass::forward));
  const Plan whole = plan;
  plan.step = [whole](int rank, int step) {
    Step made = whole.step(rank, step);
    if (step == 2) made.computes.clear();
    return made;
  };
  EXPECT_THAT(violations(plan, RankSubset::period), Contains("q[5] x kv[3] is never computed"));
}

TEST(Period, AsksForOneThatExists) {
  Plan plan = make_ring(make_problem(ranks, 24, "contiguous", "causal"), Pass::forward);
  plan.period = 0;
  EXPECT_THAT(error_text([&] { representative_ranks(plan, RankSubset::period); }),
              HasSubstr("take every rank"));
  plan.period = 4;
  EXPECT_THAT(error_text([&] { violations(plan, RankSubset::period); }), HasSubstr("a period of 4 ranks"));
  plan.period = 2;
  EXPECT_EQ(representative_ranks(plan, RankSubset::automatic), ranks);
  EXPECT_EQ(representative_ranks(plan, RankSubset::period), 2);
  EXPECT_EQ(representative_ranks(plan, RankSubset::period, 3), 6);
}

}  // namespace
}  // namespace annulus::plan
