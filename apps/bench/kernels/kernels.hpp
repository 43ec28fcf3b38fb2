#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/comm/mpi.hpp>
#include <annulus/measure/sampling.hpp>

#include "bench/kernels/case.hpp"

namespace annulus::bench {

/// The command line of `annulus-bench kernels`.
struct KernelsOptions {
  KernelSizes sizes;
  std::vector<std::string> dtypes = {"f32", "bf16"};
  std::vector<std::string> only;  ///< names of kernels; empty: all
  measure::Sampling sampling = {.repetitions = 10, .seconds = 1.0};
  std::filesystem::path json;  ///< empty: none
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_kernels_command(CLI::App& app, KernelsOptions& options);

/// Runs `annulus-bench kernels`: checks and times the element-wise and row-wise kernels of training on the
/// default execution space, on all ranks of the job at once, beside copies of as many bytes. Returns the exit
/// status: 1 where a result is wrong.
int run_kernels(KernelsOptions options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
