#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/validate/mutations.hpp"
#include "attention/plan/validate/partition.hpp"

/// Every single entry of a plan is needed: whichever is dropped, doubled or changed, the validator notices.
namespace annulus::plan {
namespace {

using test::EditedPlan;
using test::make_problem;

std::vector<EditedPlan> mutated_plans() {
  std::vector<EditedPlan> plans;
  for (const Pass pass : test::passes) {
    for (const std::string& name : schedule_names()) {
      for (const char* mask : {"full", "causal", "dilated:3,5"}) {
        const Problem problem = make_problem(test::mutated_ranks, 23, "contiguous", mask);
        if (test::serves(name, problem)) plans.emplace_back(make_plan(name, problem, pass));
      }
    }
    for (const char* name : {"all-gather", "ring", "burst"})
      plans.emplace_back(
          make_plan(name, make_problem(test::mutated_ranks, 23, "balanced", "documents:0,3,14,15"), pass));
    // Ranks need several ranges of each other's keys.
    plans.emplace_back(
        make_plan("all-gather", make_problem(test::mutated_ranks, 23, "balanced", "documents:0,9"), pass));
    plans.emplace_back(make_plan("hybrid:2x2", make_problem(4, 23, "contiguous", "causal"), pass));
  }
  return plans;
}

TEST(Validator, MissesNoMutation) {
  for (EditedPlan plan : mutated_plans()) {
    test::for_each_mutation(plan.steps, [&](const test::Steps& steps, bool wrong, const std::string& what) {
      if (!wrong) return;
      plan.steps = steps;
      const Plan changed = plan.finish();
      EXPECT_FALSE(violations(changed).empty()) << what << "\n" << to_string(changed);
    });
  }
}

// Every run of rows of a balanced cut: shorter, longer, missing, or with another one.
TEST(Validator, MissesNoRowOfACut) {
  const Problem problem = make_problem(5, 97, "balanced", "documents:0,3,30,31,70");
  std::vector<std::vector<RowRun>> runs;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const PositionMap shard = problem.shard(rank);
    runs.emplace_back(shard.runs, shard.runs + shard.run_count + 1);
  }
  const auto found = [&](const std::vector<std::vector<RowRun>>& of_ranks) {
    std::vector<PositionMap> shards;
    for (const std::vector<RowRun>& of_rank : of_ranks)
      shards.push_back(
          {.count = of_rank.back().row, .runs = of_rank.data(), .run_count = std::ssize(of_rank) - 1});
    return partition_violations(97, shards);
  };
  EXPECT_THAT(found(runs), testing::IsEmpty());
  EXPECT_THAT(partition_violations(problem), testing::IsEmpty());
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    const auto last = runs[rank].size() - 1;
    for (std::size_t i = 0; i < last; ++i) {
      auto changed = runs;
      ++changed[rank][i].position;  // its first row is missing, and one behind it is there twice
      EXPECT_THAT(found(changed), testing::Contains(testing::HasSubstr("no rank"))) << rank << ' ' << i;
      changed = runs;
      changed[rank][i].position -= changed[rank][i].position > 0 ? 1 : 0;
      if (changed != runs) {
        EXPECT_THAT(found(changed), testing::Not(testing::IsEmpty())) << rank << ' ' << i;
      }
      changed = runs;
      for (std::size_t behind = i + 1; behind <= last; ++behind) --changed[rank][behind].row;  // a row less
      EXPECT_THAT(found(changed), testing::ElementsAre(testing::HasSubstr("lies on no rank")))
          << rank << ' ' << i;
      changed = runs;
      for (std::size_t behind = i + 1; behind <= last; ++behind) ++changed[rank][behind].row;  // a row more
      EXPECT_THAT(found(changed), testing::Not(testing::IsEmpty())) << rank << ' ' << i;
    }
  }
  auto doubled = runs;
  doubled[1] = doubled[0];
  EXPECT_THAT(found(doubled), testing::Contains(testing::HasSubstr("on rank 0 and on rank 1")));
}

}  // namespace
}  // namespace annulus::plan
