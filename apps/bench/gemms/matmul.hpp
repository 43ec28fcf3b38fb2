#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/comm/mpi.hpp>

namespace annulus::bench {

/// The command line of `annulus-bench matmul`.
struct MatmulCommand {
  std::vector<std::string> shapes;  ///< TOKENSxOUTxIN; empty: those of LLaMA's layers
  std::int64_t tokens = 8192;       ///< of the shapes that are chosen
  std::string dtype = "bf16";
  int repetitions = 10;
  std::string json;  ///< empty: none
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_matmul_command(CLI::App& app, MatmulCommand& options);

/// Runs `annulus-bench matmul` on one rank: times the three GEMMs of a linear layer, y = x · wᵀ, dx = dy ·
/// w and dw += dyᵀ · x (fp32), for every shape. Throws Error for options that make no sense. Returns the exit
/// status.
int run_matmul(const MatmulCommand& options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
