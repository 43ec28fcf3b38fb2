#pragma once

#include <filesystem>
#include <vector>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/simulate.hpp>

#include "plan/comparison.hpp"

namespace annulus::planner {

/// Writes the plan, step by step as it is made, and what it takes on the cluster of `c` (docs/planning.md),
/// atomically.
void write_json(const std::filesystem::path& path, const plan::Plan& plan, const Case& c,
                const simulate::Simulation& simulation, const std::vector<Row>& comparison);

}  // namespace annulus::planner
