#pragma once

#include <string>

#include "topology/inventory.hpp"

namespace annulus::topology_app {

/// The value inside single quotes where a shell would read it otherwise.
std::string quoted(const std::string& value);

/// --env: lines for a shell, a comment with the reason behind each.
std::string shell_text(const RankInventory& inventory, const std::vector<machine::Setting>& settings);

/// --exec: sets the environment, binds the process and becomes the command. Returns only by an Error.
[[noreturn]] void execute(const Options& options, const RankInventory& inventory,
                          const std::vector<machine::Setting>& settings);

}  // namespace annulus::topology_app
