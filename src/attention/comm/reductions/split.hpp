#pragma once

#include <annulus/cluster/topology/topology.hpp>
#include <span>
#include <vector>

namespace annulus::comm {

/// What each rank passes to Communicator::split.
struct ColorKey {
  int color = 0, key = 0;
};

/// The new communicator of one rank.
struct SplitGroup {
  std::vector<int> members;  ///< ranks of the parent, in the order of the new ranks
  int rank = 0;              ///< this rank in it
  Topology topology;
};

/// The group of `rank`, from what all ranks asked for. Checks every group, so that all ranks throw the same
/// Error (a negative colour, an order that separates ranks of one node) or none does.
SplitGroup split_group(std::span<const ColorKey> wishes, const Topology& parent, int rank);

/// Nodes as the machines are: `lowest_rank[r]` is the lowest rank on the machine of rank r. Throws Error when
/// the ranks of a machine are not consecutive.
Topology topology_of_machines(std::span<const int> lowest_rank);

}  // namespace annulus::comm
