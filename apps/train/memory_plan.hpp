#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "training/run/planner/plan_memory.hpp"

namespace annulus::app {

/// Options of `annulus-train --plan-memory`.
struct MemoryPlanOptions {
  bool plan = false, longest = false;
  std::string gpu_memory, host_memory;  ///< empty: without bound
  int ranks = 0, ranks_per_node = 0;    ///< 0: those of the cluster file, else 8
  std::filesystem::path cluster;        ///< empty: attention.cluster, else the default cluster
  std::filesystem::path json, html;     ///< empty: none
  std::filesystem::path measured;       ///< folder of a run, whose memory is drawn beside; empty: none
};

void add_memory_plan(CLI::App& app, MemoryPlanOptions& options);

/// A policy in the JSON of a plan: its keys, bytes and seconds.
nlohmann::json policy_json(const training::PlannedPolicy& policy, bool on_gpu);

/// What all JSON of plans begins with: version, ranks, rates, memory.
nlohmann::json plan_json(const training::PlannedMachine& machine, std::int64_t libraries, std::int64_t spare);

/// "of a GPU, 7.75 GiB are taken as …": a line, empty on CPUs.
std::string taken_text(const training::PlannedMachine& machine, std::int64_t libraries, std::int64_t spare);

/// "times by rates of …": a line.
std::string rates_line(const training::Config& config, const training::PlannedMachine& machine,
                       const MemoryPlanOptions& options);

/// Prints the longest sequence of every policy on `machine`, and writes options.json where that is asked for.
/// Returns the exit status: 3 where no sequence fits with any.
int plan_longest(const training::Config& config, const training::PlannedMachine& machine,
                 const MemoryPlanOptions& options);

/// Prints what a rank takes with every policy, or how long a sequence each allows, and writes the files that
/// are asked for. Needs neither GPU nor other ranks. Returns the exit status: 3 where the configured policy,
/// or with options.longest every policy, does not fit.
int plan_memory(const training::Config& config, const MemoryPlanOptions& options);

}  // namespace annulus::app
