// Batches whose sequences have masks of their own: one plan for each.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/rank_rows.hpp"

namespace annulus::test {
namespace {

using Masks = std::vector<std::string>;
constexpr Shape shape{.tokens = 61, .heads = 8, .kv_heads = 4, .batch = 3};

/// A sample of which sequence i has mask i.
Sample mixed(const Masks& masks) {
  Sample sample = *make_sample(masks.front(), shape);
  for (std::size_t i = 1; i < masks.size(); ++i) {
    const auto other = make_sample(masks[i], shape);  // the same inputs
    const auto take = [&](const Array& from, Array& to) {
      const std::size_t part = to.values.size() / masks.size();
      std::copy_n(from.values.data() + i * part, part, to.values.data() + i * part);
    };
    for (const auto result : {&Sample::exact, &Sample::one_rank})
      for (const auto array : AttentionResult::arrays())
        take(other.get()->*result.*array, sample.*result.*array);
  }
  return sample;
}

executor::Plans plans_under(const std::string& schedule, plan::Problem problem, const std::string& mask,
                            int batch) {
  problem.mask = Mask::parse(mask, shape.tokens);
  problem.batch = batch;
  return plans_of(schedule, problem);
}

std::vector<executor::Plans> plans_of_each(const std::string& schedule, const plan::Problem& problem,
                                           const Masks& masks) {
  std::vector<executor::Plans> plans;
  for (const std::string& mask : masks) plans.push_back(plans_under(schedule, problem, mask, 1));
  return plans;
}

TEST(DistributedSequences, HaveMasksOfTheirOwnUnderEverySchedule) {
  const Masks masks = {"documents:0,9,30", "causal", "causal+window:12,0"};
  const Masks others = {"causal", "documents:0,44", "documents:0,1,2,60"};
  const Sample sample = mixed(masks), other = mixed(others);
  for (const auto& [ranks, schedule] : {std::pair{1, "ring"},
                                        {2, "ring"},
                                        {2, "ulysses"},
                                        {4, "burst"},
                                        {4, "double-ring"},
                                        {4, "all-gather"},
                                        {4, "ulysses"}}) {
    const std::string what = fmt::format("{} on {} ranks", schedule, ranks);
    comm::run_loopback(Topology::uniform(ranks, 2), [&](comm::Communicator& communicator) {
      const TestExec exec = rank_instance();
      const plan::Problem problem = sample.problem(communicator.topology(), Layout::parse("zigzag"));
      const PositionMap positions = problem.shard(communicator.rank());
      executor::Attention<TestExec, float> attention(exec, communicator,
                                                     plans_of_each(schedule, problem, masks));
      expect_correct(run(communicator, sample, attention, positions), what);
      attention.set_plans(exec, plans_of_each(schedule, problem, others));
      expect_correct(run(communicator, other, attention, positions), what + ", other documents");
      // And one plan for all of them.
      attention.set_plans(exec, {plans_under(schedule, problem, "causal", shape.batch)});
      expect_correct(run(communicator, *make_sample("causal", shape), attention, positions),
                     what + ", one mask");
    });
  }
}

}  // namespace
}  // namespace annulus::test
