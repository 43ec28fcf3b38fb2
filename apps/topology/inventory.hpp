#pragma once

#include <string>
#include <vector>

#include "cluster/machine/environment.hpp"
#include "cluster/machine/machine.hpp"
#include "cluster/machine/placement.hpp"
#include "cluster/machine/profile.hpp"
#include "cluster/topology/job.hpp"
#include "topology/options.hpp"

namespace annulus::topology_app {

/// A node of the job and its ranks.
struct Node {
  machine::Machine machine;
  machine::NodeResources resources;
  std::vector<machine::RankBinding> ranks;

  /// NIC `index` of the compute fabric; null for −1.
  const machine::Nic* nic(int index) const;
};

/// All that is known: the job, its nodes as far as they are described, and what is wrong.
struct JobInventory {
  machine::Profile profile;
  Job job;
  std::vector<Node> nodes;  ///< this machine alone, or all nodes of the job
  std::vector<Diagnostic> diagnostics;
};

/// The profile of --profile, or one that says nothing.
machine::Profile profile_of(const TopologyOptions& options);

/// Looks at everything that the options name.
JobInventory take_inventory(const TopologyOptions& options, const Variables& variables);

/// One rank of this machine, or of the first --xml file, and nothing of its job: what --env and --exec need.
/// Launchers say which rank it is where the options do not.
struct RankInventory {
  machine::Profile profile;
  Node node;
  machine::RankBinding binding;
  bool bound = false;  ///< its launcher has bound it already
  bool speaks = true;  ///< the first rank of all, which logs
  std::vector<Diagnostic> diagnostics;
};
RankInventory take_rank_inventory(const TopologyOptions& options, const Variables& variables);

/// The name by which the job knows this machine.
std::string this_host(const machine::Machine& machine, const Variables& variables);

/// The number that a variable has; 0 where it has none above 0.
int positive_number(const Variables& variables, const char* name);

/// Writes warnings to stderr. Throws Error with the first error, or with the first warning under --strict.
void report(const std::vector<Diagnostic>& diagnostics, bool strict);

}  // namespace annulus::topology_app
