#pragma once

#include <filesystem>
#include <optional>

#include <annulus/topology/topology.hpp>

namespace annulus::app {

/// Where the ranks of a cluster that need not be there sit: what --ranks and --ranks-per-node say, where they
/// are 0 what the cluster file (`origin`) says, else 8 ranks, 8 on a node. Throws Error naming the option.
Topology topology_of(int ranks, int ranks_per_node, const std::optional<Topology>& file,
                     const std::filesystem::path& origin);

}  // namespace annulus::app
