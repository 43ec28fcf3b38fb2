// What rings of rings move, under the full mask and under masks that need less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/plan/schedules.hpp>

#include "plan/check_plan.hpp"
#include "plan/support.hpp"

namespace annulus::plan {
namespace {

using test::BlockFile;
using test::for_sends;
using test::layouts;
using test::on_nodes;
using test::passes;
using testing::IsEmpty;

/// Rows of the shards of one rail.
std::int64_t rail_rows(const Problem& problem, int local) {
  std::int64_t rows = 0;
  for (int node = 0; node < problem.topology.nodes(); ++node) {
    rows += problem.shard(problem.topology.first_rank(node) + local).count;
  }
  return rows;
}

/// Bytes of one row of all tensors that travel, and of all sums.
struct Widths {
  std::int64_t inputs = 0, sums = 0;
};
Widths widths(const Problem& problem, bool queries, Pass pass) {
  const std::int64_t stored = static_cast<std::int64_t>(size_of(problem.activation)), d = problem.head_dim;
  const std::int64_t batch = problem.batch;
  if (!queries || pass == Pass::forward) {
    const std::int64_t kv = batch * problem.kv_heads * d;
    return {2 * kv * stored, pass == Pass::backward ? 2 * kv * 4 : 0};
  }
  const std::int64_t heads = batch * problem.heads;
  return {2 * heads * d * stored + 2 * heads * 4, heads * d * 4};
}

/// Under a full mask, exactly, also when the ranks do not divide the tokens. On its inner ring a rank passes
/// on, in every loop, all shards but those of its successor's rail; between the nodes, the shards of its own
/// rail but that of the next node. Of the sums it sends all of its own rail but its own between nodes, all
/// other rails inside.
TEST(NodeRings, MoveExactlyWhatTheFullMaskNeeds) {
  for (const auto& [nodes, size] : {std::pair{2, 2}, {2, 4}, {3, 3}, {4, 2}}) {
    for (const std::string& layout : layouts) {
      Problem problem = on_nodes(nodes, size, 61, layout, "full");
      problem.activation = DType::bf16;
      const int ranks = nodes * size;
      for (const std::string& name : test::node_rings) {
        for (const Pass pass : passes) {
          const Widths bytes = widths(problem, name == "topology-burst", pass);
          const Plan plan = make_plan(name, problem, pass);
          for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(testing::Message() << name << " " << name_of(pass) << " " << layout << " " << nodes
                                            << "x" << size << " rank " << rank);
            const int local = problem.topology.local_rank(rank);
            const std::int64_t own_rail = rail_rows(problem, local);
            const std::int64_t inside =
                (61 - rail_rows(problem, (local + 1) % size)) * bytes.inputs + (61 - own_rail) * bytes.sums;
            const std::int64_t between =
                (own_rail - problem.shard((rank + size) % ranks).count) * bytes.inputs +
                (own_rail - problem.shard(rank).count) * bytes.sums;
            const Traffic found = traffic(plan, rank);
            EXPECT_EQ(found.sent_bytes_inter_node, between);
            EXPECT_EQ(found.sent_bytes - found.sent_bytes_inter_node, inside);
          }
        }
      }
    }
  }
}

/// The published volumes are those of the flat rings, (G−1)/G of 2Nd, 4Nd and 3Nd + 2N; the share (I−1)/G of
/// them crosses from one of I nodes to the next.
TEST(NodeRings, MoveThePublishedVolumes) {
  const int nodes = 3, size = 4, ranks = nodes * size;
  const Problem problem = on_nodes(nodes, size, 96, "zigzag", "full");
  for (const auto& [name, flat] :
       {std::pair{"topology-burst", "burst"}, {"hierarchical", "ring"}, {"double-ring", "ring"}}) {
    for (const Pass pass : passes) {
      const Plan plan = make_plan(name, problem, pass), ring = make_plan(flat, problem, pass);
      for (int rank = 0; rank < ranks; ++rank) {
        const Traffic found = traffic(plan, rank), expected = traffic(ring, rank);
        for (int t = 0; t < tensor_count; ++t) {
          EXPECT_EQ(found.sent[t], expected.sent[t]);
          EXPECT_EQ(found.received[t], expected.received[t]);
        }
        EXPECT_EQ(found.sent_bytes_inter_node * (ranks - 1), found.sent_bytes * (nodes - 1));
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
  for (const Step& step : plan.rank_steps(4)) {
    EXPECT_THAT(step.clears, IsEmpty());
    for (const Transfer& receive : step.receives) EXPECT_EQ(receive.on_receive, OnReceive::store);
  }
}

}  // namespace
}  // namespace annulus::plan
