// How evenly ranks and steps share selected pairs: the reason for block-striped layouts (MTraining,
// section 4.2).
#include <gtest/gtest.h>

#include <annulus/plan/schedules.hpp>
#include <annulus/simulate/simulate.hpp>
#include <annulus/sparsity/host_pairs.hpp>
#include <cmath>
#include <random>
#include <string>

namespace annulus::test {
namespace {

constexpr std::int64_t tokens = 32 * 1024;
constexpr int ranks = 32;

/// A selection of one head with 5 % of the pairs: block diagonals that are the likelier the nearer they are,
/// as rotary positions make them (section 3.2).
sparsity::Selection<HostExec> nearby_slashes() {
  const HostExec exec;
  sparsity::Selection<HostExec> selection;
  selection.tokens = tokens;
  const std::int64_t blocks = selection.block_rows();
  selection.blocks = Owned<Array3<std::uint32_t, HostExec>>::zeroed(
      exec, MemoryCategory::data, "annulus::test::blocks", 1, 1, blocks / 32);
  selection.columns = Owned<Array2<std::int32_t, HostExec>>::zeroed(exec, MemoryCategory::data,
                                                                    "annulus::test::columns", 1, 0);
  std::mt19937 random(5);
  const auto take = [&](std::int64_t distance) {
    std::uint32_t& word = selection.blocks.view()(0, 0, distance / 32);
    const std::uint32_t bit = 1u << (distance % 32);
    if ((word & bit) == 0) selection.listed += blocks - distance;
    word |= bit;
  };
  for (const std::int64_t near : {0, 1, 2, 3}) take(near);
  while (selection.listed < blocks * blocks / 40) {  // 5 % of half of all
    const double share = static_cast<double>(random() % 10000) / 10000;
    take(static_cast<std::int64_t>(std::pow(static_cast<double>(blocks), share)) % blocks);
  }
  return selection;
}

simulate::Imbalance imbalance(const sparsity::HostPairs& pairs, const std::string& layout,
                              const std::string& schedule) {
  plan::Problem problem;
  problem.topology = Topology::uniform(ranks, 8);
  problem.layout = Layout::parse(layout);
  problem.mask = Mask::parse("causal", tokens);
  const plan::Plan plan = plan::make_plan(schedule, problem, plan::Pass::forward);
  return simulate::imbalance_of(plan, [&](const plan::Compute& c) { return pairs.block_pairs(problem, c); });
}

TEST(SparseBalance, IsThatOfBlockStripesAndNotOfZigzag) {
  const sparsity::HostPairs pairs(HostExec(), nearby_slashes());
  const double density = static_cast<double>(pairs.pairs()) / (0.5 * tokens * (tokens + 1));
  EXPECT_NEAR(density, 0.05, 0.005);
  const simulate::Imbalance striped = imbalance(pairs, "block-striped:64", "ring"),
                            zigzag = imbalance(pairs, "zigzag", "ring"),
                            hierarchical = imbalance(pairs, "block-striped:64", "hierarchical");
  for (const auto& [name, value] : {std::pair("striped.worker", striped.worker),
                                    {"striped.step", striped.step},
                                    {"zigzag.worker", zigzag.worker},
                                    {"zigzag.step", zigzag.step},
                                    {"hierarchical.worker", hierarchical.worker},
                                    {"hierarchical.step", hierarchical.step},
                                    {"density", density}})
    RecordProperty(name, std::to_string(value));
  EXPECT_LT(striped.worker, 1.05);
  EXPECT_LT(striped.worker, zigzag.worker);
  EXPECT_LT(striped.step, 0.5 * zigzag.step);
  EXPECT_DOUBLE_EQ(hierarchical.worker, striped.worker) << "the order of steps changes no rank's sum";
}

}  // namespace
}  // namespace annulus::test
