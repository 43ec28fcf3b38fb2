#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "topology/scene.hpp"

namespace annulus::topology_app {

/// Everything that was found and decided (docs/topology.md).
nlohmann::json to_json(const Scene& scene, const machine::Guess& guess);

/// One rank and its environment.
nlohmann::json to_json(const RankScene& scene, const std::vector<machine::Setting>& settings);

}  // namespace annulus::topology_app
