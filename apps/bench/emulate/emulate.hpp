#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/comm/mpi.hpp>

namespace annulus::bench {

/// The command line of `annulus-bench emulate`.
struct EmulateOptions {
  int ranks = 0, ranks_per_node = 0;  ///< 0: as the topology file says
  std::vector<std::string> schedules = {"ring", "double-ring", "topology-burst"}, layouts = {"zigzag"};
  std::string mask = "causal", dtype = "f32", kernel = "automatic";
  std::int64_t tokens = 512;
  int heads = 4, kv_heads = 0, head_dim = 16, batch = 1;
  std::filesystem::path topology;
  double time_scale = 0;  ///< 0: chosen
  int repetitions = 3;
  bool no_stand_in = false, no_overlap = false;
  std::filesystem::path json;
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_emulate_command(CLI::App& app, EmulateOptions& options);

/// Runs `annulus-bench emulate` (docs/emulation.md), in one process: ranks are threads. Returns the exit
/// status.
int run_emulate(const EmulateOptions& options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
