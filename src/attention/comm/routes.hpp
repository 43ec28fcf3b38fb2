#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>

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

/// The way of a sum in rank order: every rank has a block for each rank r, `bytes(r)` bytes at block(r), and
/// gets those for itself from all others, as they are, bytes(rank) each. They land in `memory` in the order
/// of the ranks, without a place for that of `rank` itself (Contributions). `memory` holds
/// contribution_blocks(topology) of the largest blocks.
///
/// Inside the nodes first. No order of the stages saves bytes on the network, as nothing may be summed on
/// the way.
struct ContributionRoute {
  std::function<const std::byte*(int rank)> block;
  std::function<std::size_t(int rank)> bytes;
  std::byte* memory = nullptr;

  std::vector<CollectiveStage> stages(const Topology& topology, int rank) const;
};
std::size_t contribution_blocks(const Topology& topology);

}  // namespace annulus::comm
