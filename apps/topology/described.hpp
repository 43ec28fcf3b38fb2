#pragma once

#include <string>
#include <vector>

#include "cluster/machine/machine.hpp"
#include "cluster/topology/job.hpp"

/// Nodes that were described in files.
namespace annulus::topology_app {

using machine::Machine;

/// Two names of one host: "n1" and "n1.cluster" are the same, "n1.a" and "n1.b" are not.
bool same_host(const std::string& a, const std::string& b);

/// --xml: [HOST=]FILE.
std::vector<Machine> read_files(const std::vector<std::string>& files);

/// --from: every HOST.xml of a folder, sorted by host. Throws Error when there is none.
std::vector<Machine> read_folder(const std::string& name);

/// The described nodes in the job's order, by the job's names. Throws Error for a node of the job that has
/// left no description in the folder; without a folder such nodes are left out.
std::vector<Machine> in_job_order(std::vector<Machine> machines, const Job& job, const std::string& folder);

}  // namespace annulus::topology_app
