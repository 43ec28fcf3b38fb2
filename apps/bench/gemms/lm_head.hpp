#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include <annulus/comm/mpi.hpp>

namespace annulus::bench {

/// The command line of `annulus-bench lm-head`.
struct LmHeadCommand {
  std::int64_t tokens = 1024, vocabulary = 4096, hidden = 256;
  std::int64_t sequence_tile = 0, workspace_mib = 0;  ///< 0: the library chooses
  std::string dtype = "bf16";
  int repetitions = 5;
  std::uint64_t seed = 1;
  std::string json;  ///< empty: none
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_lm_head_command(CLI::App& app, LmHeadCommand& options);

/// Runs `annulus-bench lm-head` on one rank: checks the head's results against double precision on sampled
/// rows, then times a pass in rounds with its three matrix products alone, each whole in one call of
/// linalg::matmul. Throws Error for options that make no sense and when the check fails. Returns the exit
/// status.
int run_lm_head(const LmHeadCommand& options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
