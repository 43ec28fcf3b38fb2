// Two-level rings on which half of the heads go round at a time: half of the exchange buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/builders/head_turns.hpp"
#include "attention/plan/support.hpp"

namespace annulus::plan {
namespace {

using testing::IsEmpty;

TEST(HeadTurns, PlansStayValidAndMoveTheSame) {
  for (const auto& [nodes, size] : {std::pair{2, 2}, {3, 2}, {2, 3}, {4, 1}, {3, 3}}) {
    for (const std::string mask : {"causal", "full", "causal+window:30,0", "causal+documents:0,9,40,41,77"}) {
      for (const std::string layout : {"zigzag", "striped", "contiguous"}) {
        Problem problem;
        problem.topology = Topology::uniform(nodes * size, size);
        problem.layout = Layout::parse(layout);
        problem.mask = Mask::parse(mask, 97);
        problem.heads = 12;
        problem.kv_heads = 6;
        for (const std::string name : {"topology-burst", "hierarchical", "double-ring", "burst"}) {
          for (const Pass pass : {Pass::forward, Pass::backward}) {
            const Plan whole = make_plan(name, problem, pass);
            for (const int turns : {2, 3}) {
              SCOPED_TRACE(name + " of " + problem.topology.to_string() + ", " + mask + ", " + layout + ", " +
                           std::string(name_of(pass)));
              Problem of_turn = problem;
              of_turn.heads /= turns;
              of_turn.kv_heads /= turns;
              const Plan first = make_plan(name, of_turn, pass);
              const Plan all = in_turns(problem, {first, last_compute(first)}, turns);
              ASSERT_THAT(violations(all), IsEmpty());
              for (int rank = 0; rank < problem.ranks(); ++rank) {
                const Traffic before = traffic(whole, rank), after = traffic(all, rank);
                EXPECT_TRUE(std::ranges::equal(before.sent, after.sent));
                EXPECT_TRUE(std::ranges::equal(before.received, after.received));
                EXPECT_EQ(before.pairs, after.pairs);
              }
            }
          }
        }
      }
    }
  }
}

/// A model of 14 billion parameters: 40 heads of 128, on 4 nodes of 8 ranks.
Problem of_14b(std::int64_t tokens) {
  Problem problem;
  problem.topology = Topology::uniform(32, 8);
  problem.layout = Layout::parse("striped");
  problem.mask = Mask::parse("causal", tokens);
  problem.heads = problem.kv_heads = 40;
  problem.head_dim = 128;
  problem.dtype = DType::bf16;
  return problem;
}

std::int64_t buffers(const simulator::Simulation& of) {
  std::int64_t most = 0;
  for (const auto& rank : of.ranks) most = std::max(most, rank.buffer_bytes);
  return most;
}

TEST(HeadTurns, LongMessagesNeedTheBuffersOfAFlatRing) {
  const simulator::Cluster cluster = simulator::default_cluster();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Problem problem = of_14b(std::int64_t{1} << 20);
    const Plan plan = make_topology_burst(problem, pass);
    ASSERT_THAT(violations(plan, RankSubset::period), IsEmpty());
    const auto turns = simulator::simulate(plan, cluster),
               flat = simulator::simulate(make_burst(problem, pass), cluster);
    EXPECT_LE(double(buffers(turns)), 1.01 * double(buffers(flat)));
    EXPECT_LE(turns.time, 1.002 * flat.time);
    // The same in one turn, of heads that cannot be cut.
    Problem whole = problem;
    whole.heads = whole.kv_heads = 1;
    whole.batch = problem.heads;
    const auto one_turn = simulator::simulate(make_topology_burst(whole, pass), cluster);
    EXPECT_EQ(2 * buffers(turns), buffers(one_turn));
    EXPECT_LE(turns.time, one_turn.time);
  }
}

TEST(HeadTurns, ShortMessagesAndFlatRingsStayWhole) {
  EXPECT_EQ(make_topology_burst(of_14b(std::int64_t{1} << 17), Pass::backward).parts.turn, 0);
  EXPECT_EQ(make_burst(of_14b(std::int64_t{1} << 20), Pass::backward).parts.turn, 0);
  EXPECT_GT(make_hierarchical(of_14b(std::int64_t{1} << 18), Pass::forward).parts.turn, 0);
  EXPECT_EQ(make_double_ring(of_14b(std::int64_t{1} << 20), Pass::backward).parts.turn, 0)
      << "gradients travel while nothing computes";
  Problem odd = of_14b(std::int64_t{1} << 20);
  odd.heads = odd.kv_heads = 33;
  EXPECT_EQ(make_topology_burst(odd, Pass::backward).parts.turn, 0) << "whole kv heads";
}

}  // namespace
}  // namespace annulus::plan
