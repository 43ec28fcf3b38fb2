#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <annulus/core/memory.hpp>
#include <annulus/plan/plan.hpp>

#include "bench/options.hpp"
#include "bench/verify.hpp"

namespace annulus::bench {

/// One pass on one rank. Plain numbers: ranks send it as bytes.
struct PassRecord {
  double least_seconds = 0, median_seconds = 0, most_seconds = 0;  ///< over the repetitions
  double waiting_share = 0;  ///< of the time: transfers that compute did not hide
  std::int64_t sent_bytes = 0, received_bytes = 0, sent_bytes_between_nodes = 0;
  std::int64_t pairs = 0;  ///< unmasked (query, key, head) of the whole batch
};

struct RankRecord {
  PassRecord forward, backward;
  std::array<std::int64_t, memory_category_count> peak_bytes{};
  std::int64_t peak_resident_bytes = 0;
};

/// What rank 0 knows at the end.
struct Report {
  const AttentionOptions& options;
  const plan::Problem& problem;
  std::string communicator, execution_space;
  int threads = 1;  ///< of a rank
  /// Time of a pass: of the slowest rank in each repetition, the median of these.
  double forward_seconds = 0, backward_seconds = 0;
  std::vector<RankRecord> ranks;
  std::optional<CheckResult> check;
};

/// Floating-point operations of a pass, counted on unmasked pairs alone: 4 · pairs · head_dim in the forward
/// pass (two products), 2.5 times that in the backward pass (five).
double flops(const plan::Problem& problem, plan::Pass pass, std::int64_t pairs);

/// Largest share of the pairs over the mean share: 1 is perfect.
double imbalance(const Report& report, plan::Pass pass);

nlohmann::json to_json(const Report& report);

/// A table for people.
std::string to_table(const Report& report);

}  // namespace annulus::bench
