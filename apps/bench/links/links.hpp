#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/comm/mpi.hpp>
#include <annulus/measure/cluster.hpp>

#include "bench/common/transport_options.hpp"
#include "bench/links/rates.hpp"

namespace annulus::bench {

/// The command line of `annulus-bench links`.
struct LinksOptions {
  measure::LinkOptions links;
  measure::KernelOptions kernels;
  RateOptions rates;
  std::vector<std::string> dtypes = {"f32", "bf16"}, masks = {"full", "causal"};
  std::string kernel = "automatic";
  bool no_kernels = false;
  int ranks_per_node = 0;
  TransportOptions transport;
  std::filesystem::path output, json, base;  ///< empty: none
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_links_command(CLI::App& app, LinksOptions& options);

/// Runs `annulus-bench links` on all ranks of the job: measures, prints tables and writes the cluster file
/// (docs/formats/cluster.md). Returns the exit status.
int run_links(LinksOptions options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
