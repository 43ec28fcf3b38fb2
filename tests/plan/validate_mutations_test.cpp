#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>

#include "plan/check_plan.hpp"

/// Every single entry of a plan is needed: whichever is dropped, doubled or changed, the validator notices.
namespace annulus::plan {
namespace {

using test::EditedPlan;
using test::make_problem;
using testing::IsEmpty;
using testing::Not;

constexpr int mutated_ranks = 6;  // on 3 nodes

/// Calls `check(copy of the plan, description)` after every change that `change` can make to one entry.
template <class Entry, class Change, class Check>
void for_each_entry(const EditedPlan& plan, std::vector<Entry> Step::*list, Change change, Check check) {
  for (std::size_t rank = 0; rank < plan.steps.size(); ++rank) {
    for (std::size_t step = 0; step < plan.steps[rank].size(); ++step) {
      for (std::size_t i = 0; i < (plan.steps[rank][step].*list).size(); ++i) {
        EditedPlan changed = plan;
        change(changed.steps[rank][step].*list, i);
        check(changed, testing::Message() << "rank " << rank << " step " << step << " entry " << i);
      }
    }
  }
}

std::vector<EditedPlan> mutated_plans() {
  std::vector<EditedPlan> plans;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const std::string& name : schedule_names()) {
      for (const char* mask : {"full", "causal", "dilated:3,5"}) {
        const Problem problem = make_problem(mutated_ranks, 23, "contiguous", mask);
        if (test::serves(name, problem)) plans.emplace_back(make_plan(name, problem, pass));
      }
    }
    plans.emplace_back(make_plan("hybrid:2x2", make_problem(4, 23, "contiguous", "causal"), pass));
  }
  return plans;
}

const auto expect_found = [](const EditedPlan& plan, const testing::Message& where) {
  EXPECT_THAT(violations(plan.finish()), Not(IsEmpty())) << where << "\n" << to_string(plan.finish());
};

TEST(Validator, MissesNoEntryThatIsDropped) {
  const auto drop = [](auto& entries, std::size_t i) {
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (const EditedPlan& plan : mutated_plans()) {
    for_each_entry(plan, &Step::clears, drop, expect_found);
    for_each_entry(plan, &Step::sends, drop, expect_found);
    for_each_entry(plan, &Step::receives, drop, expect_found);
    for_each_entry(plan, &Step::computes, drop, expect_found);
  }
}

TEST(Validator, MissesNoEntryThatIsDoubled) {
  const auto twice = [](auto& entries, std::size_t i) {
    entries.push_back(typename std::decay_t<decltype(entries)>::value_type(entries[i]));
  };
  for (const EditedPlan& plan : mutated_plans()) {
    for_each_entry(plan, &Step::sends, twice, expect_found);
    for_each_entry(plan, &Step::receives, twice, expect_found);
    for_each_entry(plan, &Step::computes, twice, expect_found);
  }
}

TEST(Validator, MissesNoFieldThatIsWrong) {
  const auto each = [](const EditedPlan& plan, auto list, auto change) {
    for_each_entry(
        plan, list, [&](auto& entries, std::size_t i) { change(entries[i]); }, expect_found);
  };
  for (const EditedPlan& plan : mutated_plans()) {
    for (const auto list : {&Step::sends, &Step::receives}) {
      each(plan, list, [](Transfer& t) { t.slice.owner = (t.slice.owner + 1) % mutated_ranks; });
      each(plan, list, [](Transfer& t) { t.slice.rows.end -= 1; });
      each(plan, list, [](Transfer& t) { t.slice.heads.begin += 1; });
      each(plan, list,
           [](Transfer& t) { t.slice.tensor = t.slice.tensor == Tensor::q ? Tensor::d_o : Tensor::q; });
      each(plan, list, [](Transfer& t) { t.wire = DType::f16; });
      each(plan, list, [](Transfer& t) { t.peer = (t.peer + 1) % mutated_ranks; });
      each(plan, list, [](Transfer& t) {
        t.channel = t.channel == Channel::gradients ? Channel::activations : Channel::gradients;
      });
      each(plan, list, [](Transfer& t) { t.wait = t.post; });
      each(plan, list, [](Transfer& t) { t.post += 1; });
    }
    each(plan, &Step::sends, [](Transfer& t) { t.slot += 1; });
    each(plan, &Step::computes, [](Compute& c) { c.q_slot += 1; });
    each(plan, &Step::computes, [](Compute& c) { c.kv_slot += 1; });
    each(plan, &Step::computes, [](Compute& c) { c.out_slot += 1; });
    each(plan, &Step::computes, [](Compute& c) { c.q_shard = (c.q_shard + 1) % mutated_ranks; });
    each(plan, &Step::computes, [](Compute& c) { c.heads.end -= 1; });
    each(plan, &Step::clears, [](Clear& c) { c.slot += 1; });
    each(plan, &Step::clears, [](Clear& c) { c.slice.rows.begin += 1; });
  }
}

}  // namespace
}  // namespace annulus::plan
