// How evenly ranks and steps share selected pairs: the reason for block-striped layouts (MTraining,
// section 4.2).
#include <gtest/gtest.h>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/sparsity/host_pairs.hpp"
#include "prediction/simulator/selected.hpp"

namespace annulus::test {
namespace {

constexpr std::int64_t tokens = 32 * 1024;
constexpr int ranks = 32;

/// The slashes of a list that hold 5 % of the pairs, the likelier the nearer they are, as rotary positions
/// make them (section 3.2).
std::vector<std::int64_t> nearby_slashes(std::mt19937& random) {
  constexpr std::int64_t blocks = tokens / 64;
  std::set<std::int64_t> taken;
  std::int64_t listed = 0;
  const auto take = [&](std::int64_t distance) {
    if (taken.insert(distance).second) listed += blocks - distance;
  };
  for (const std::int64_t near : {0, 1, 2, 3}) take(near);
  while (listed < blocks * blocks / 40) {  // 5 % of half of all
    const double share = static_cast<double>(random() % 10000) / 10000;
    take(static_cast<std::int64_t>(std::pow(static_cast<double>(blocks), share)) % blocks);
  }
  return {taken.begin(), taken.end()};
}

std::vector<std::vector<std::int64_t>> nearby_slashes(int lists) {
  std::mt19937 random(5);
  std::vector<std::vector<std::int64_t>> all;
  for (int list = 0; list < lists; ++list) all.push_back(nearby_slashes(random));
  return all;
}

plan::Plan plan_on(const std::string& layout, const std::string& schedule, int heads) {
  plan::Problem problem;
  problem.topology = Topology::uniform(ranks, 8);
  problem.layout = Layout::parse(layout);
  problem.mask = Mask::parse("causal", tokens);
  problem.heads = problem.kv_heads = heads;
  problem = plan::arranged_for(schedule, std::move(problem));
  return plan::make_plan(schedule, problem, plan::Pass::forward);
}

simulator::Imbalance imbalance(const simulator::SelectedBlocks& blocks, const std::string& layout,
                               const std::string& schedule) {
  const plan::Plan plan = plan_on(layout, schedule, blocks.lists());
  return simulator::simulate(plan, simulator::default_cluster(), simulator::Detail::totals,
                             plan::RankSubset::every_rank, blocks.selected())
      .imbalance;
}

TEST(SparseBalance, IsThatOfBlockStripesAndNotOfZigzag) {
  const simulator::SelectedBlocks one(tokens, 64, nearby_slashes(1)), eight(tokens, 64, nearby_slashes(8));
  EXPECT_NEAR(eight.density(), 0.05, 0.005);
  const simulator::Imbalance striped = imbalance(eight, "block-striped:64", "ring"),
                             zigzag = imbalance(eight, "zigzag", "ring"),
                             hierarchical = imbalance(one, "block-striped:64", "hierarchical"),
                             one_striped = imbalance(one, "block-striped:64", "ring");
  for (const auto& [name, value] : {std::pair("striped.worker", striped.worker),
                                    {"striped.step", striped.step},
                                    {"zigzag.worker", zigzag.worker},
                                    {"zigzag.step", zigzag.step},
                                    {"one_head.step", one_striped.step},
                                    {"one_head.hierarchical.step", hierarchical.step},
                                    {"density", eight.density()}})
    RecordProperty(name, std::to_string(value));
  EXPECT_LT(striped.worker, 1.05);
  EXPECT_LT(striped.worker, zigzag.worker);
  EXPECT_LT(striped.step, zigzag.step);
  EXPECT_DOUBLE_EQ(hierarchical.worker, one_striped.worker) << "the order of steps changes no rank's sum";
}

TEST(SparseBalance, OfSlashesIsThatOfTheirBlockLists) {
  const HostExec exec;
  const auto slashes = nearby_slashes(1);
  sparsity::Selection<HostExec> selection;
  selection.tokens = tokens;
  const std::int64_t blocks = selection.block_rows();
  selection.blocks = Owned<Array3<std::uint32_t, HostExec>>::zeroed(
      exec, MemoryCategory::data, "annulus::test::blocks", 1, 1, blocks / 32);
  selection.columns = Owned<Array2<std::int32_t, HostExec>>::zeroed(exec, MemoryCategory::data,
                                                                    "annulus::test::columns", 1, 0);
  for (const std::int64_t distance : slashes.front()) {
    selection.blocks.view()(0, 0, distance / 32) |= 1u << (distance % 32);
    selection.listed += blocks - distance;
  }
  const sparsity::HostPairs pairs(exec, selection);
  const simulator::SelectedBlocks expected(tokens, 64, slashes);
  const plan::Plan plan = plan_on("block-striped:64", "ring", 1);
  for (const int step : {0, 3, 17})
    for (const plan::Compute& compute : plan.step(5, step).computes)
      EXPECT_EQ(pairs.block_pairs(plan.problem.shard(compute.q_shard).slice(compute.q_rows),
                                  plan.problem.shard(compute.kv_shard).slice(compute.kv_rows), compute.heads),
                expected.pairs(plan.problem, compute))
          << step;
  EXPECT_NEAR(expected.density(), double(pairs.pairs()) / (0.5 * tokens * (tokens + 1)), 1e-12);
}

}  // namespace
}  // namespace annulus::test
