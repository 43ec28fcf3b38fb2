#pragma once

#include <nlohmann/json.hpp>

#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::app {

/// Links and kernels as the reports of all programs write them; `dtype` of a kernel is null when its rate
/// holds for every type.
nlohmann::json to_json(const simulator::Cluster& cluster);

/// Ranks, sequence and heads of a problem.
nlohmann::json to_json(const plan::Problem& problem);

}  // namespace annulus::app
