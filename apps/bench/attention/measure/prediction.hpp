#pragma once

#include <optional>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

/// What predictions stand on.
struct PredictionSource {
  std::optional<simulator::Cluster> cluster;  ///< nothing: no predictions
  bool has_kernels = false;                   ///< its kernel rates go before those of a run
  std::string source;                         ///< where this comes from
};

/// --cluster FILE, or "none". Throws Error as simulator::read_cluster does.
PredictionSource read_machine(const std::string& topology);

/// --cluster measure: links between the ranks of the communicator and, with `kernels`, rates of the local
/// kernel for the shape of the case, in a second or so. Collective; all ranks get the same.
simulator::Cluster measure_machine(comm::Communicator& communicator, const AttentionOptions& options,
                                   bool kernels);

/// Completes the passes of a report whose times and ranks are there: imbalance of the plan and, where the
/// machine is known, the simulated time. Kernel rates that the machine does not give are those of the
/// report's local kernel.
void predict(CaseReport& report, const PredictionSource& machine);

/// How many times as fast as the ring on the contiguous layout the ring on this problem's layout can be, when
/// only computing takes time and every round takes as long as its busiest rank (Striped Attention §2.2 and
/// §4, "Theoretical Maximum Speedup", of attention alone). With S_r the shards and N(q, k) the unmasked
/// pairs:
///
///     Σ_i max_j N(S_j, S_{j−i}) of the contiguous layout over the same of the problem's.
///
/// 1 when nothing is computed.
double theoretical_maximum_speedup(plan::Problem problem);

}  // namespace annulus::bench
