// Plans that repeat themselves: simulated on the ranks of one period as on all.
#include <gtest/gtest.h>

#include <annulus/attention/plan/schedules.hpp>

#include "prediction/simulator/support.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;
using plan::RankSubset;

constexpr int nodes = 4, ranks_per_node = 2;

std::vector<plan::Plan> periodic_plans(std::string_view layout, std::string_view mask, std::int64_t tokens) {
  plan::Problem problem = plan::test::on_nodes(nodes, ranks_per_node, tokens, layout, mask);
  problem.heads = 8;
  problem.dtype = DType::bf16;
  std::vector<plan::Plan> plans;
  for (const char* name : {"ring", "burst", "topology-burst", "hierarchical", "double-ring", "all-gather",
                           "ulysses", "hybrid:2x4", "hybrid:4x2"}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (auto plan = plan::test::with_period(plan::make_plan(name, problem, pass)))
        plans.push_back(std::move(*plan));
    }
  }
  EXPECT_GE(plans.size(), 8U);
  return plans;
}

Cluster cluster_of(int nics) {
  Cluster cluster = default_cluster();
  cluster.intra_node.bandwidth = 4e9;
  cluster.inter_node.bandwidth = 1e9;
  cluster.nics_per_node = nics;
  if (nics > 0) cluster.rank_bandwidth = 0.7e9;
  return cluster;
}

TEST(SimulatePeriod, IsExactWhereAllRanksDoTheSame) {
  for (const int nics : {0, 1}) {
    for (const char* layout : {"contiguous", "striped", "balanced"}) {
      for (const plan::Plan& plan : periodic_plans(layout, "full", 64 * nodes * ranks_per_node)) {
        SCOPED_TRACE(plan.schedule + " " + std::string(name_of(plan.pass)) + " " + layout);
        const Simulation all = simulate(plan, cluster_of(nics), Detail::totals, RankSubset::every_rank);
        const Simulation period = simulate(plan, cluster_of(nics), Detail::totals, RankSubset::period);
        EXPECT_DOUBLE_EQ(period.time, all.time);
        EXPECT_DOUBLE_EQ(period.imbalance.worker, all.imbalance.worker);
        EXPECT_DOUBLE_EQ(period.imbalance.step, all.imbalance.step);
        ASSERT_EQ(period.ranks.size(), all.ranks.size());
        for (std::size_t r = 0; r < all.ranks.size(); ++r) {
          EXPECT_EQ(period.ranks[r].pairs, all.ranks[r].pairs);
          EXPECT_EQ(period.ranks[r].sent, all.ranks[r].sent);
          EXPECT_EQ(period.ranks[r].received, all.ranks[r].received);
          EXPECT_EQ(period.ranks[r].buffer_bytes, all.ranks[r].buffer_bytes);
          EXPECT_NEAR(period.ranks[r].exposed_communication, all.ranks[r].exposed_communication, 1e-12);
        }
      }
    }
  }
}

TEST(SimulatePeriod, IsNearWhereLoadsDifferALittle) {
  // Shards of 77 or 78 rows under a causal mask: work and bytes differ by less than a twentieth.
  for (const char* layout : {"zigzag", "striped", "balanced"}) {
    for (const plan::Plan& plan : periodic_plans(layout, "causal", 77 * nodes * ranks_per_node + 3)) {
      SCOPED_TRACE(plan.schedule + " " + std::string(name_of(plan.pass)) + " " + layout);
      const Simulation all = simulate(plan, cluster_of(0), Detail::totals, RankSubset::every_rank);
      const Simulation period = simulate(plan, cluster_of(0), Detail::totals, RankSubset::period);
      EXPECT_NEAR(period.time, all.time, 0.05 * all.time);
      EXPECT_DOUBLE_EQ(period.imbalance.worker, all.imbalance.worker);
      for (std::size_t r = 0; r < all.ranks.size(); ++r) EXPECT_EQ(period.ranks[r].pairs, all.ranks[r].pairs);
    }
  }
}

TEST(SimulatePeriod, NodesOfDifferentSizeAreWalkedThrough) {
  plan::Problem problem = test::hand_problem(4, 4);
  problem.topology = Topology(std::vector<int>{3, 1});
  const auto plan = plan::test::with_period(plan::make_ring(problem, Pass::forward));
  ASSERT_TRUE(plan);
  EXPECT_EQ(simulate(*plan, cluster_of(0), Detail::totals, RankSubset::period).time,
            simulate(*plan, cluster_of(0), Detail::totals, RankSubset::every_rank).time);
}

}  // namespace
}  // namespace annulus::simulator
