#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/sparsity/host_pairs.hpp"
#include "bench/attention/cases/case.hpp"
#include "bench/attention/check/check.hpp"
#include "bench/common/times.hpp"

namespace annulus::bench {

/// One pass on one rank. Plain numbers: ranks send it as bytes.
struct PassRecord {
  double least_seconds = 0, median_seconds = 0, most_seconds = 0;  ///< over the repetitions
  double exposed_communication_seconds = 0;  ///< the median: transfers that compute did not hide
  double exposed_communication_share = 0;    ///< of the time of all repetitions
  double computation_ratio = 1;              ///< of the time of plan steps, waiting and kernels, the kernels
  std::int64_t sent_bytes = 0, received_bytes = 0, sent_bytes_inter_node = 0;
  std::int64_t pairs = 0;         ///< unmasked (query, key, head) of the whole batch
  std::int64_t kernel_pairs = 0;  ///< pairs of the local kernel alone (CaseRun::run_kernel)
};

struct RankRecord {
  std::array<PassRecord, 2> passes;  ///< forward, backward
  using Peaks = std::array<std::int64_t, memory_category_count>;
  Peaks peak_bytes{}, peak_device_bytes{};
  std::int64_t peak_resident_bytes = 0;
};

/// What the simulator says of a pass.
struct PassPrediction {
  double seconds = 0;
  double exposed_communication_seconds = 0;  ///< the mean of the ranks
};

/// A pass of all ranks.
struct PassReport {
  RepeatedTimes seconds;          ///< of the slowest rank, by repetition
  RepeatedTimes kernel_seconds;   ///< times of the local kernel alone, on all ranks at once
  RepeatedTimes compute_seconds;  ///< times of the pass without its transfers (--compute-only); else none
  simulator::Imbalance imbalance;
  std::optional<PassPrediction> prediction;
};

/// What a selection of --sparsity took.
struct SparsityReport {
  std::int64_t pairs = 0, all_pairs = 0;  ///< selected, and those of the mask, of all heads and sequences
  std::int64_t columns = 0;               ///< of the selection that has the most
  std::int64_t bytes = 0;                 ///< that are kept for the backward pass, on each rank
  std::shared_ptr<const sparsity::HostPairs> blocks;  ///< of the last selection; on rank 0
  std::int64_t column_bytes = 0;         ///< of columns, that a rank sends in a forward and a backward pass
  RepeatedTimes selection_seconds = {};  ///< of the slowest rank, by repetition; part of the forward pass
  double density() const { return static_cast<double>(pairs) / static_cast<double>(all_pairs); }
};

/// What moves and computes a case.
struct Machinery {
  std::string communicator, execution_space;
  std::string kernel;  ///< of the local attention: that which runs, never "automatic"; "spin" with --spin
  int threads = 1;     ///< of a rank
};

/// What rank 0 knows of a case at the end.
struct CaseReport {
  const BenchCase& of;
  Machinery on;
  std::array<PassReport, 2> passes = {};  ///< forward, backward
  std::string prediction_source = {};     ///< of links and kernel rates, or why there is no prediction
  double theoretical_speedup = 1;         ///< Striped Attention's maximum (prediction.hpp)
  std::vector<RankRecord> ranks = {};
  std::optional<CheckResult> check = {};
  std::optional<SparsityReport> sparsity = {};
};

/// Passes that a case runs.
std::vector<plan::Pass> passes_of(const AttentionOptions& options);

constexpr std::size_t index_of(plan::Pass pass) {
  return static_cast<std::size_t>(pass);
}

/// FLOP/s of a rank by the local kernel alone, the mean of all.
double kernel_rate(const CaseReport& report, plan::Pass pass);

/// The object of one case (docs/formats/annulus-bench.md).
nlohmann::json to_json(const CaseReport& report);

/// "config" and "topology" of the object of a case that has not been run: what --resume compares.
nlohmann::json config_json(const BenchCase& c, const Machinery& on);

/// A table for people: rank by rank.
std::string to_table(const CaseReport& report);

}  // namespace annulus::bench
