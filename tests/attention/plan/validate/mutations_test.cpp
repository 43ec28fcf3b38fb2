#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/validate/mutations.hpp"

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

}  // namespace
}  // namespace annulus::plan
