// Rings of rings: topology-burst, hierarchical and double-ring.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/support.hpp"
#include "support/error_text.hpp"

namespace annulus::plan {
namespace {

using test::BlockFile;
using test::check_plan;
using test::for_sends;
using test::on_nodes;
using test::passes;
using testing::IsEmpty;

/// Whether both have the same steps, whatever their names.
bool same_steps(Plan a, const Plan& b) {
  a.schedule = b.schedule;
  return a == b;
}

TEST(NodeRings, HaveOneForward) {
  for (const std::string& layout : test::all_layouts) {
    for (const std::string& mask : test::masks_of(37)) {
      const Problem problem = on_nodes(3, 2, 37, layout, mask);
      const Plan burst = make_topology_burst(problem, Pass::forward);
      for (const std::string& name : test::node_rings)
        EXPECT_TRUE(same_steps(make_plan(name, problem, Pass::forward), burst)) << name << layout << mask;
    }
  }
}

/// The partition with which BurstEngine's rank (node, local) works in ring step r (counted from 0).
TEST(NodeRings, WorkInThePublishedOrder) {
  const int nodes = 3, size = 4;
  const Problem problem = on_nodes(nodes, size, 48, "contiguous", "full");
  for (const std::string& name : test::node_rings) {
    const Plan plan = make_plan(name, problem, Pass::forward);
    EXPECT_EQ(plan.steps, nodes * size);
    for (int node = 0; node < nodes; ++node) {
      for (int local = 0; local < size; ++local) {
        for (int r = 0; r < nodes * size; ++r) {
          const std::vector<Compute> computes = plan.step(node * size + local, r).computes;
          ASSERT_EQ(computes.size(), 1u);
          EXPECT_EQ(computes.front().kv_shard,
                    ((node - r / size + nodes) % nodes) * size + (local - r % size + size) % size);
        }
      }
    }
  }
}

TEST(NodeRings, OneNodeIsAFlatRing) {
  for (const char* mask : {"full", "causal", "window:9,0"}) {
    const Problem problem = on_nodes(1, 5, 43, "contiguous", mask);
    for (const Pass pass : passes) {
      EXPECT_TRUE(same_steps(make_topology_burst(problem, pass), make_burst(problem, pass)));
      EXPECT_TRUE(same_steps(make_hierarchical(problem, pass), make_ring(problem, pass)));
    }
    EXPECT_TRUE(same_steps(make_double_ring(problem, Pass::forward), make_ring(problem, Pass::forward)));
  }
}

TEST(NodeRings, OneRankANodeTakesTheStepsOfAFlatRing) {
  const Problem problem = on_nodes(6, 1, 43, "zigzag", "causal");
  for (const Pass pass : passes) {
    const Plan plan = make_topology_burst(problem, pass), flat = make_burst(problem, pass);
    EXPECT_EQ(plan.steps, flat.steps);
    for (int rank = 0; rank < 6; ++rank) {
      EXPECT_EQ(traffic(plan, rank).sent_bytes, traffic(flat, rank).sent_bytes);
      EXPECT_EQ(traffic(plan, rank).sent_bytes_inter_node, traffic(flat, rank).sent_bytes);
    }
  }
}

TEST(NodeRings, RanksExchangeWithNeighboursAndOnTheirOwnRail) {
  const int nodes = 4, size = 3;
  const Problem problem = on_nodes(nodes, size, 60, "striped", "full");
  const Topology& topology = problem.topology;
  for (const std::string& name : test::node_rings) {
    for (const Pass pass : passes) {
      for_sends(make_plan(name, problem, pass), [&](int rank, const Transfer& send) {
        const bool outer =
            send.channel == Channel::outer_activations || send.channel == Channel::outer_gradients;
        EXPECT_EQ(outer, !topology.same_node(rank, send.peer));
        EXPECT_EQ(is_gradient(send.slice.tensor),
                  send.channel == Channel::outer_gradients || send.channel == Channel::gradients);
        if (outer) {
          EXPECT_EQ(topology.local_rank(send.peer), topology.local_rank(rank));
          EXPECT_EQ(topology.node(send.peer), (topology.node(rank) + 1) % nodes);
        } else {
          EXPECT_EQ(topology.local_rank(send.peer), (topology.local_rank(rank) + 1) % size);
        }
      });
    }
  }
}

// --- Time --------------------------------------------------------------------------------------------------

TEST(NodeRings, NextNodesShardsTravelForAWholeLoop) {
  const int nodes = 3, size = 4;
  for (const std::string& name : test::node_rings) {
    const Plan plan = make_plan(name, on_nodes(nodes, size, 48, "striped", "full"), Pass::forward);
    int seen = 0;
    for_sends(plan, [&](int, const Transfer& send) {
      if (send.channel != Channel::outer_activations) return;
      ++seen;
      EXPECT_EQ(send.post % size, 0);
      EXPECT_EQ(send.wait, send.post + size);
    });
    EXPECT_EQ(seen, nodes * size * (nodes - 1) * 2);
  }
}

/// Gradients that a rank sends while it computes, and while it does not.
struct Overlap {
  int hidden = 0, exposed = 0;
};
Overlap overlap_of(const Plan& plan, int rank) {
  const std::vector<Step> steps = rank_steps(plan, rank);
  Overlap overlap;
  for (const Step& step : steps) {
    for (const Transfer& send : step.sends) {
      if (!is_gradient(send.slice.tensor)) continue;
      const bool hidden = std::any_of(steps.begin() + send.post, steps.begin() + send.wait,
                                      [](const Step& at) { return !at.computes.empty(); });
      ++(hidden ? overlap.hidden : overlap.exposed);
    }
  }
  return overlap;
}

/// Figure 5: after one warm-up round every gradient travels while its sender computes, but for the last hop
/// inside the node and the last one between nodes.
TEST(NodeRings, GradientsTravelWhileRanksCompute) {
  const int nodes = 3, size = 4;
  const Problem problem = on_nodes(nodes, size, 48, "striped", "full");
  const Plan plan = make_topology_burst(problem, Pass::backward);
  EXPECT_EQ(plan.steps, nodes * size + 3);
  for (int rank = 0; rank < nodes * size; ++rank) {
    const Overlap overlap = overlap_of(plan, rank);
    EXPECT_EQ(overlap.exposed, 2);
    EXPECT_EQ(overlap.hidden, nodes * size - 3);
    for (int t = 0; t < 2; ++t) {
      for (const Transfer& send : plan.step(rank, t).sends) EXPECT_FALSE(is_gradient(send.slice.tensor));
    }
    EXPECT_TRUE(std::ranges::any_of(plan.step(rank, 2).sends,
                                    [](const Transfer& send) { return send.slice.tensor == Tensor::dq; }));
  }
  int hops = 0;
  for_sends(plan, [&](int, const Transfer& send) {
    if (send.channel != Channel::outer_gradients || send.post > nodes * size) return;
    ++hops;  // one step into the loop that follows, until its end
    EXPECT_EQ(send.post % size, 1);
    EXPECT_EQ(send.wait, send.post + size - 1);
  });
  EXPECT_EQ(hops, nodes * size * (nodes - 2));
}

TEST(NodeRings, DoubleRingsMoveGradientsWhileNobodyComputes) {
  const int nodes = 3, size = 4, ranks = nodes * size;
  for (const int window : {size, 2, 1, ranks}) {
    const Plan plan = make_double_ring(on_nodes(nodes, size, 48, "striped", "full"), Pass::backward, window);
    for (int rank = 0; rank < ranks; ++rank) {
      const Overlap overlap = overlap_of(plan, rank);
      EXPECT_EQ(overlap.hidden, 0);
      EXPECT_EQ(overlap.exposed, 2 * (ranks - 1));  // dk and dv
      for (const Step& step : rank_steps(plan, rank)) {
        const bool moves_gradients = std::ranges::any_of(
            step.sends, [](const Transfer& send) { return is_gradient(send.slice.tensor); });
        EXPECT_FALSE(moves_gradients && !step.computes.empty());
        // Activations of the inner ring do not share these steps either.
        for (const Transfer& send : step.sends) {
          if (send.channel == Channel::activations) {
            EXPECT_EQ(send.wait, send.post + 1);
          }
          EXPECT_EQ(is_gradient(send.slice.tensor), moves_gradients);
        }
      }
    }
  }
}

// --- Masks -------------------------------------------------------------------------------------------------

std::int64_t rows_between_nodes(const Plan& plan, Tensor tensor) {
  std::int64_t rows = 0;
  for_sends(plan, [&](int rank, const Transfer& send) {
    if (send.slice.tensor == tensor && !plan.problem.topology.same_node(rank, send.peer)) {
      rows += send.slice.rows.size();
    }
  });
  return rows;
}

TEST(NodeRings, DocumentsThatKeepToANodeStayThere) {
  const Problem problem = on_nodes(3, 4, 96, "contiguous", "documents:0,32,64");
  for (const std::string& name : test::node_rings) {
    for (const Pass pass : passes) {
      const Plan plan = make_plan(name, problem, pass);
      for_sends(plan, [&](int rank, const Transfer& send) {
        EXPECT_TRUE(problem.topology.same_node(rank, send.peer));
      });
      if (pass == Pass::forward) {
        EXPECT_EQ(plan.steps, 4);
      }
    }
  }
}

/// With a window of one shard, only the last shard of a node is needed on the next one.
TEST(NodeRings, WindowsCrossToTheNextNodeOnly) {
  const Problem problem = on_nodes(3, 4, 96, "contiguous", "window:8,0");
  for (const std::string& name : test::node_rings) {
    const Plan forward = make_plan(name, problem, Pass::forward);
    EXPECT_EQ(rows_between_nodes(forward, Tensor::k), 2 * 8);
    EXPECT_EQ(forward.steps, 4);  // two loops of two rounds
  }
  EXPECT_EQ(rows_between_nodes(make_hierarchical(problem, Pass::backward), Tensor::dk), 2 * 8);
  EXPECT_EQ(rows_between_nodes(make_topology_burst(problem, Pass::backward), Tensor::q), 2 * 8);
  EXPECT_EQ(rows_between_nodes(make_topology_burst(problem, Pass::backward), Tensor::dq), 2 * 8);
}

TEST(NodeRings, CausalContiguousShardsStopAtTheLastNode) {
  const Problem problem = on_nodes(4, 2, 80, "contiguous", "causal");
  // Each of the 20 rows of node n goes to the 3 − n nodes behind it.
  EXPECT_EQ(rows_between_nodes(make_hierarchical(problem, Pass::backward), Tensor::v), 20 * (3 + 2 + 1));
  EXPECT_EQ(rows_between_nodes(make_hierarchical(problem, Pass::backward), Tensor::dv), 20 * (3 + 2 + 1));
  EXPECT_EQ(rows_between_nodes(make_topology_burst(problem, Pass::backward), Tensor::dq), 20 * (1 + 2 + 3));
}

TEST(NodeRings, NodesThatNeedNothingRelay) {
  // Queries of shard 0 see the keys of shards 0, 3 and 7, on nodes 0, 1 and 3, those of shard 2 the keys of
  // shard 7: two nodes away.
  const BlockFile file({"0 3 7", "1", "2 7", "3", "4", "5", "6", "7"});
  const Problem problem = on_nodes(4, 2, 80, "contiguous", file.mask(10));
  const Plan plan = make_topology_burst(problem, Pass::backward);
  EXPECT_THAT(violations(plan), IsEmpty());
  using Ways = std::vector<std::pair<int, int>>;
  Ways q, dq;
  for_sends(plan, [&](int rank, const Transfer& send) {
    if (send.slice.owner != 0) return;
    if (send.slice.tensor == Tensor::q) q.emplace_back(rank, send.peer);
    if (send.slice.tensor == Tensor::dq) dq.emplace_back(rank, send.peer);
  });
  EXPECT_EQ(q, (Ways{{0, 2}, {2, 4}, {2, 3}, {4, 6}, {6, 7}}));
  EXPECT_EQ(dq, (Ways{{2, 4}, {3, 2}, {4, 6}, {6, 0}, {7, 6}}));
  for (const Step& step : rank_steps(plan, 4)) {
    EXPECT_THAT(step.clears, IsEmpty());
    for (const Transfer& receive : step.receives) EXPECT_EQ(receive.on_receive, OnReceive::store);
  }
}

// --- Refusals ----------------------------------------------------------------------------------------------

TEST(NodeRings, RefuseUnevenNodes) {
  Problem problem = on_nodes(2, 3, 30, "contiguous", "full");
  problem.topology = Topology({2, 3, 1});
  for (const std::string& name : test::node_rings) {
    EXPECT_THAT(error_text([&] { make_plan(name, problem, Pass::forward); }),
                mentions(fmt::format("schedule '{}'", name), problem.topology.to_string()));
  }
  check_plan(make_double_ring(problem, Pass::backward, 3));  // windows are not bound to nodes
  EXPECT_EQ(error_text([&] { make_double_ring(problem, Pass::forward, 4); }),
            "schedule 'double-ring:4': windows of 4 ranks do not divide 6 ranks: use schedule double-ring:3");
}

}  // namespace
}  // namespace annulus::plan
