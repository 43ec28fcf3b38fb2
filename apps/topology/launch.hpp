#pragma once

#include <string>

#include "topology/inventory.hpp"

namespace annulus::topology_app {

/// --launch: what srun or mpirun are to be told to start the job's ranks, or a step on `options.nodes` of its
/// nodes, as lines for a shell. Writes --hostfile when the order needs it. Throws Error that names the nodes
/// when they were not given equally many tasks or logical CPUs, when there are fewer nodes than asked for,
/// and when a node has fewer logical CPUs than ranks.
std::string launch_text(const Options& options, const JobInventory& inventory, const Variables& variables);

}  // namespace annulus::topology_app
