#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "topology/inventory.hpp"

namespace annulus::topology_app {

/// Everything that was found and decided (docs/topology.md).
nlohmann::json to_json(const JobInventory& inventory, const machine::Guess& guess);

/// One rank and its environment.
nlohmann::json to_json(const RankInventory& inventory, const std::vector<machine::Setting>& settings);

}  // namespace annulus::topology_app
