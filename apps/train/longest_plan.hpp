#pragma once

#include <annulus/training/run/config.hpp>

#include "memory_plan.hpp"

namespace annulus::app {

/// Prints the longest sequence of every policy on `machine`, and writes options.json where that is asked for.
/// Returns the exit status: 3 where no sequence fits with any.
int plan_longest(const training::Config& config, const training::PlannedMachine& machine,
                 const MemoryPlanOptions& options);

}  // namespace annulus::app
