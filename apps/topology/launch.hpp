#pragma once

#include <string>
#include <vector>

#include "topology/inventory.hpp"

namespace annulus::topology_app {

/// What srun or mpirun are to be told.
struct Launch {
  std::vector<std::string> hosts;     ///< in the order of the ranks
  std::vector<std::string> switches;  ///< leaf switches above these, in the same order; empty: not known
  int ranks_per_node = 1;
  int cpus_per_rank = 1;   ///< logical CPUs, as --cpus-per-task counts
  bool arbitrary = false;  ///< the order is not Slurm's own: it needs a host file
};

/// Plans the start of the job's ranks, or of a step on `options.nodes` of its nodes. Throws Error that names
/// the nodes when they were not given equally many tasks or logical CPUs, when there are fewer nodes than
/// asked for, and when a node has fewer logical CPUs than ranks.
Launch plan_launch(const Options& options, const JobInventory& inventory, const Variables& variables);

/// Lines for a shell. Writes --hostfile when the order needs it.
std::string shell_text(const Options& options, const Launch& launch);

}  // namespace annulus::topology_app
