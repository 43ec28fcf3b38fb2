#pragma once

#include <span>

#include <annulus/topology/topology.hpp>

namespace annulus::comm {

/// Nodes as the machines are: `lowest_rank[r]` is the lowest rank on the machine of rank r. Throws Error when
/// the ranks of a machine are not consecutive.
Topology topology_of_machines(std::span<const int> lowest_rank);

}  // namespace annulus::comm
