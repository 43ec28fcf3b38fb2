#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "training/run/planner/plan_memory.hpp"

namespace annulus::app {

/// Options of `annulus-train --plan-memory`.
struct MemoryPlanOptions {
  bool plan = false;
  std::string gpu_memory, host_memory;  ///< empty: without bound
  int ranks = 0, ranks_per_node = 0;    ///< 0: those of the cluster file, else 8
  std::filesystem::path cluster;        ///< empty: attention.cluster, else the default cluster
  std::filesystem::path json, html;     ///< empty: none
  std::filesystem::path measured;       ///< folder of a run, whose memory is drawn beside; empty: none
};

void add_memory_plan(CLI::App& app, MemoryPlanOptions& options);

/// Prints what a rank takes with every policy, and writes the files that are asked for. Needs neither GPU nor
/// other ranks. Returns the exit status: 3 where the configured policy does not fit.
int plan_memory(const training::Config& config, const MemoryPlanOptions& options);

}  // namespace annulus::app
