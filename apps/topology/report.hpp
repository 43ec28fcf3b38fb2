#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "topology/inventory.hpp"

/// What the program says of its inventories, and does with them.
namespace annulus::topology_app {

/// What was found, to be read: the job, its switches, each type of node, the ranks of a node and what
/// follows.
std::string tree_text(const JobInventory& inventory, const machine::Guess& guess);

/// Everything that was found and decided (docs/topology.md).
nlohmann::json to_json(const JobInventory& inventory, const machine::Guess& guess);

/// One rank and its environment.
nlohmann::json to_json(const RankInventory& inventory,
                       const std::vector<machine::EnvironmentSetting>& settings);

/// --launch: what srun or mpirun are to be told to start the job's ranks, or a step on `options.nodes` of its
/// nodes, as lines for a shell. Writes --hostfile when the order needs it. Throws Error that names the nodes
/// when they were not given equally many tasks or logical CPUs, when there are fewer nodes than asked for,
/// and when a node has fewer logical CPUs than ranks.
std::string launch_text(const TopologyOptions& options, const JobInventory& inventory,
                        const Variables& variables);

/// --env: lines for a shell, a comment with the reason behind each.
std::string shell_text(const RankInventory& inventory,
                       const std::vector<machine::EnvironmentSetting>& settings);

/// --exec: sets the environment, binds the process and becomes the command. Returns only by an Error.
[[noreturn]] void execute(const TopologyOptions& options, const RankInventory& inventory,
                          const std::vector<machine::EnvironmentSetting>& settings);

}  // namespace annulus::topology_app
