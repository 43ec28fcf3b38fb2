#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/common/transport_options.hpp"
#include "options/problem.hpp"

namespace annulus::bench {

/// One case.
struct AttentionOptions : options::ProblemOptions {
  bool local = false;
  std::vector<std::string> steps;       ///< of --local: names of local/ring_steps.hpp, or "all"
  double pause = 0.5, sustained = 0.2;  ///< of --local: RateOptions
  std::string schedule = "ring", layout = "zigzag", kernel = "automatic";
  int ranks = 0;  ///< the first of the job; 0: all
  std::uint64_t seed = 1;
  std::string inputs = "random";                ///< or "vertical-slash": VerticalSlashValues
  std::optional<std::uint64_t> embedding_seed;  ///< like `seed` when not given
  int warm_up = 1, repetitions = 5;
  bool backward = true;  ///< false: the forward pass alone
  bool overlap = true;
  double soft_cap = 0;  ///< of the scores; 0: none
  bool sinks = false;   ///< random ones join the rows
  /// What results are compared with before they are timed: none, reference (every row, in double precision),
  /// sampled (some rows of every head) or automatic (reference where that takes seconds, else sampled).
  std::string check = "none";
  std::optional<double> tolerance;  ///< of the check, instead of the type's
  int stall_timeout = 1800;         ///< seconds that a rank may wait for others at a time; 0: for ever
  TransportOptions transport;
  std::string spin;           ///< "F,B" in TFLOP/s: kernels that only take their time; empty: kernels compute
  int spin_free = 16;         ///< SMs that those leave free
  bool compute_only = false;  ///< also times passes without their transfers
  std::string dump;           ///< file; empty: none
  std::string sparsity;       ///< of sparsity::PatternOptions; empty: all pairs of the mask
  std::vector<std::filesystem::path> data;
};

/// The command line of `annulus-bench attention`: lists of values, of which every combination is a case.
struct SweepOptions {
  AttentionOptions common;  ///< what has one value for all cases
  std::vector<std::string> schedules = {"ring"}, layouts = {"zigzag"}, masks = {"causal"}, dtypes = {"f32"};
  std::vector<std::int64_t> tokens = {4096};
  std::vector<std::int64_t> tokens_per_rank;  ///< in the place of tokens: weak scaling
  std::vector<int> ranks, heads = {8}, kv_heads = {0};
  std::string pass = "both", overlap = "on", placement;
  int ranks_per_node = 0;
  std::string topology = "measure";  ///< or "none", or a file
  std::string json, csv, html;       ///< files; empty: none
  bool resume = false;
};

/// Runs `annulus-bench attention` on all ranks of the job. Returns the exit status: 1 when --check finds an
/// error beyond the tolerance.
int run_attention(SweepOptions& options, const comm::MpiEnvironment& mpi);

/// Throws Error naming the option for what makes no sense in any case, before any rank talks to another.
void check_options(const SweepOptions& options, int ranks);

/// Every combination, in the order in which they are run; `ranks` is the size of the job.
std::vector<AttentionOptions> cases_of(const SweepOptions& options, int ranks);

}  // namespace annulus::bench
