// Last computes cut by heads, so that gradients travel beside them and beside a part of the first ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/builders/tail.hpp"
#include "attention/plan/support.hpp"

namespace annulus::plan {
namespace {

using testing::IsEmpty;

const std::vector<std::string> circulating = {"ring", "burst", "topology-burst", "hierarchical"};

/// 256 MiB of a gradient tensor on each rank.
Problem long_problem(int nodes, int size, const std::string& mask) {
  Problem problem;
  problem.topology = Topology::uniform(nodes * size, size);
  problem.layout = Layout::parse("zigzag");
  problem.mask = Mask::parse(mask, std::int64_t{16384} * nodes * size);
  problem.heads = problem.kv_heads = 32;
  problem.head_dim = 128;
  problem.dtype = DType::bf16;
  return problem;
}

TEST(Tail, PlansStayValidAndMoveTheSame) {
  for (const auto& [nodes, size] : {std::pair{1, 2}, {1, 4}, {2, 2}, {3, 2}, {2, 3}, {4, 1}}) {
    for (const std::string mask : {"causal", "full", "causal+window:30,0", "causal+documents:0,9,40,41,77"}) {
      for (const std::string layout : {"zigzag", "striped", "contiguous"}) {
        Problem problem = long_problem(nodes, size, "causal");
        problem.mask = Mask::parse(mask, 97);
        problem.layout = Layout::parse(layout);
        problem.heads = 8;
        problem.kv_heads = 4;
        for (const std::string& name : circulating) {
          const Plan plan = make_plan(name, problem, Pass::backward);
          for (const int parts : {2, 3, 4}) {
            SCOPED_TRACE(name + " of " + problem.topology.to_string() + ", " + mask + ", " + layout);
            const Plan cut = overlap_tail(plan, last_compute(plan), parts);
            EXPECT_EQ(cut.steps, plan.steps + parts - 1);
            ASSERT_THAT(violations(cut), IsEmpty());
            for (int rank = 0; rank < problem.ranks(); ++rank) {
              const Traffic before = traffic(plan, rank), after = traffic(cut, rank);
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

TEST(Tail, LongSequencesHideTheLastGradients) {
  for (const auto& [nodes, size] : {std::pair{1, 4}, {1, 8}, {2, 4}, {4, 4}}) {
    const Problem problem = long_problem(nodes, size, "causal");
    for (const std::string& name : circulating) {
      SCOPED_TRACE(name + " of " + problem.topology.to_string());
      const Plan cut = make_plan(name, problem, Pass::backward);
      // Where there are two levels, the second half of the heads begins there.
      const int turn = cut.parts.turn;
      EXPECT_EQ(turn > 0, nodes > 1 && name != "ring" && name != "burst");
      EXPECT_EQ(cut.parts.first, last_compute(cut) - turn - 4);
      EXPECT_EQ(cut.parts.count, 4);
      EXPECT_EQ(cut.round(last_compute(cut) - 1), turn + cut.parts.first);
      EXPECT_EQ(cut.round(last_compute(cut)), turn) << "what the turn's first step has left";
      ASSERT_THAT(violations(cut), IsEmpty());
      // The problem in one part: heads that cannot be cut.
      Problem whole = problem;
      whole.heads = whole.kv_heads = 1;
      whole.batch = problem.heads;
      const Plan uncut = make_plan(name, whole, Pass::backward);
      EXPECT_EQ(uncut.parts.count, 1);
      EXPECT_EQ(cut.steps, turn + uncut.steps + 3);
      const simulator::Cluster cluster = simulator::default_cluster();
      const auto of_cut = simulator::simulate(cut, cluster), of_uncut = simulator::simulate(uncut, cluster);
      EXPECT_LE(of_cut.time, of_uncut.time);
      EXPECT_DOUBLE_EQ(of_cut.imbalance.step, of_uncut.imbalance.step) << "parts of a round count as one";
    }
    const auto exposed = [&](const Problem& p) {
      const auto s = simulator::simulate(make_burst(p, Pass::backward), simulator::default_cluster());
      return s.time - s.ranks.front().computing;
    };
    if (nodes > 1) continue;
    Problem whole = problem;
    whole.heads = whole.kv_heads = 1;
    whole.batch = problem.heads;
    EXPECT_LT(exposed(problem), 0.02 * exposed(whole));
  }
}

TEST(Tail, ShortMessagesAndForwardPassesStayWhole) {
  Problem problem = long_problem(1, 4, "causal");
  EXPECT_EQ(tail_parts(problem, Tensor::dq), 4);
  EXPECT_EQ(make_burst(problem, Pass::forward).parts.count, 1);
  EXPECT_EQ(make_double_ring(problem, Pass::backward).parts.count, 1);
  problem.kv_heads = 2;
  EXPECT_EQ(tail_parts(problem, Tensor::dq), 2) << "whole kv heads";
  problem = long_problem(1, 4, "causal");
  problem.mask = Mask::parse("causal", 4 * 1024);
  EXPECT_EQ(tail_parts(problem, Tensor::dq), 1) << "16 MiB";
  EXPECT_EQ(make_burst(problem, Pass::backward).parts.count, 1);
}

}  // namespace
}  // namespace annulus::plan
