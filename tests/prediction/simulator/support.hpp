#pragma once

#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/support.hpp"

namespace annulus::simulator::test {

/// Round numbers for timelines that are worked out by hand: 1000 bytes/s inside a node, 100 bytes/s on a NIC
/// between nodes, `rate` FLOP/s.
inline Cluster hand_cluster(double rate, double inside_latency = 0, double between_latency = 0) {
  Cluster cluster;
  cluster.intra_node = {.bandwidth = 1000, .latency = inside_latency};
  cluster.inter_node = {.bandwidth = 100, .latency = between_latency};
  cluster.kernels = {{plan::Pass::forward, 8, 0, rate}, {plan::Pass::backward, 8, 0, rate}};
  return cluster;
}

/// Full attention of one head of size 5, fp32, 10 tokens a rank: K and V of a shard are 200 bytes each, the
/// forward of a pair of shards 100 · 4 · 5 = 2000 FLOP, its backward 5000.
inline plan::Problem hand_problem(int ranks, int ranks_per_node) {
  return {.topology = Topology::uniform(ranks, ranks_per_node),
          .layout = Layout::parse("contiguous"),
          .mask = Mask::parse("full", 10 * ranks),
          .head_dim = 5};
}

}  // namespace annulus::simulator::test
