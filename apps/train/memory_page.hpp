#pragma once

#include <filesystem>
#include <string>

#include "common/text.hpp"
#include "training/run/planner/plan_memory.hpp"

namespace annulus::app {

/// One unit for all numbers of a table or drawing: that of the configured policy.
BinaryUnit unit_of(const training::MemoryPlan& plan, bool on_gpu);

/// A page with the memory of a rank over an optimizer step by category, as predicted, and as measured where
/// `measured`, the folder of a run, is not empty. Throws Error where that has no memory.json, or one of
/// another model.
std::string memory_page(const training::MemoryPlan& plan, const training::PlannedMachine& machine,
                        const std::filesystem::path& measured);

}  // namespace annulus::app
