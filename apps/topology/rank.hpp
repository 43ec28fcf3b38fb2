#pragma once

#include <string>
#include <vector>

#include "topology/inventory.hpp"

/// What --env and --exec do with the environment of a rank.
namespace annulus::topology_app {

/// Lines for a shell, a comment with the reason behind each.
std::string shell_text(const RankInventory& inventory, const std::vector<machine::Setting>& settings);

/// Sets the environment, binds the process and becomes the command. Returns only by an Error.
[[noreturn]] void execute(const Options& options, const RankInventory& inventory,
                          const std::vector<machine::Setting>& settings);

}  // namespace annulus::topology_app
