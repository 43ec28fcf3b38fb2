#pragma once

#include <string>

#include "topology/inventory.hpp"

namespace annulus::topology_app {

/// What was found, to be read: the job, its switches, each type of node, the ranks of a node and what
/// follows.
std::string tree_text(const JobInventory& inventory, const machine::Guess& guess);

}  // namespace annulus::topology_app
