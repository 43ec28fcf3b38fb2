#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>

#include "attention/comm/reductions/reduce.hpp"
#include "attention/comm/reductions/stages.hpp"

/// The ways on which everybody's data gets to everybody.
///
/// Where several nodes hold the same number of ranks, several each, data goes in two stages, between the
/// ranks of a node and between the ranks with the same place on their nodes. A rank then has (ranks of a node
/// − 1) + (nodes − 1) peers, 7 + 127 of 1024 ranks, instead of 1023. Otherwise one stage leads from every
/// rank to all others: nodes of different sizes leave ranks without a partner on other nodes.
namespace annulus::comm {

/// Data goes in two stages.
bool in_two_stages(const Topology& topology);

/// An all-gather: a block of `bytes(r)` bytes of each rank r, which lands on all others at place(r). That of
/// `rank` itself lies at `own`; place(rank) is not touched.
///
/// Between the nodes first: each block then crosses the network once for each node, and is handed on inside.
struct GatherRoute {
  const std::byte* own = nullptr;
  std::function<std::byte*(int rank)> place;
  std::function<std::size_t(int rank)> bytes;

  std::vector<CollectiveStage> stages(const Topology& topology, int rank) const;
};

/// Blocks of this type are combined in two stages. Nodes of 2, 4, 8, … ranks alone: their sums are subtrees
/// of the sum of all ranks, so the bits are those of one stage. Not 16-bit types: sums inside a node would
/// have to be rounded to be sent.
bool combines_in_two_stages(const Topology& topology, DType type);

/// A reduction of a block for each rank r, `count(r)` elements at block(r) on every rank. `memory` is for
/// topology.ranks() − 1 of the largest blocks.
///
/// Inside the nodes first: each rank combines what its node contributes to the blocks of its partners, the
/// ranks with its place on other nodes. One block for each node then crosses the network.
struct ReductionRoute {
  std::function<const std::byte*(int rank)> block;
  std::function<std::size_t(int rank)> count;
  std::byte* memory = nullptr;
  DType type = DType::f32;
  ReduceOp op = ReduceOp::sum;

  std::vector<CollectiveStage> stages(const Topology& topology, int rank) const;
  /// What is left to combine for `rank` when the stages are complete.
  Contributions arrived(const Topology& topology, int rank) const;

 private:
  std::size_t bytes(int rank) const { return count(rank) * size_of(type); }
  /// What the ranks of this node contribute to the blocks of its partners, by the partner's node, `rank`
  /// itself among them, and what the nodes contribute to its own block. The combination of a node's
  /// contributions takes the place of the first.
  struct NodeContributions {
    std::vector<Contributions> inside;
    Contributions between;
  };
  NodeContributions by_node(const Topology& topology, int rank) const;
};

}  // namespace annulus::comm
