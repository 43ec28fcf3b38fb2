#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/attention/comm/mpi.hpp>

#include "options/cluster.hpp"
#include "options/problem.hpp"

namespace annulus::bench {

/// The command line of `annulus-bench emulate`.
struct EmulateOptions {
  options::ProblemOptions problem = {.tokens = 512, .heads = 4, .head_dim = 16};
  options::ClusterOptions cluster;
  std::vector<std::string> schedules = {"ring", "double-ring", "topology-burst"}, layouts = {"zigzag"};
  std::string kernel = "automatic";
  double time_scale = 0;  ///< 0: chosen
  int repetitions = 3;
  bool real_kernels = false, no_overlap = false;
  std::filesystem::path json;
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_emulate_command(CLI::App& app, EmulateOptions& options);

/// Runs `annulus-bench emulate` (docs/emulation.md), in one process: ranks are threads. Returns the exit
/// status.
int run_emulate(const EmulateOptions& options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
