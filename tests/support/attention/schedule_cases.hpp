#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "base/parse_number.hpp"

/// What the crosses of tests run over: topologies, schedules with their arguments, and what docs/schedules.md
/// says that a schedule does not serve.
namespace annulus::test {

/// The ranks on the nodes as evenly as they go: the first nodes hold one more.
inline Topology balanced(int ranks, int nodes) {
  std::vector<int> ranks_on(static_cast<std::size_t>(nodes), ranks / nodes);
  for (int node = 0; node < ranks % nodes; ++node) ++ranks_on[static_cast<std::size_t>(node)];
  return Topology(ranks_on);
}

/// Every schedule with every argument that fits the number of ranks: double rings with all windows, hybrids
/// on all grids in both placements.
inline std::vector<std::string> schedules_on(int ranks) {
  std::vector<std::string> names = {"ring",        "burst",      "topology-burst", "hierarchical",
                                    "double-ring", "all-gather", "helper-worker",  "ulysses"};
  for (int i = 1; i <= ranks; ++i) {
    if (ranks % i != 0) continue;
    names.push_back(fmt::format("double-ring:{}", i));
    names.push_back(fmt::format("hybrid:{}x{}", i, ranks / i));
    if (i > 1 && i < ranks) names.push_back(names.back() + ":context-first");
  }
  return names;
}

/// The shards in the order of the ranks are the sequence.
inline bool consecutive(const plan::Problem& problem) {
  std::int64_t rows = 0;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const PositionMap shard = problem.shard(rank);
    if (!shard.empty() && (shard.front() != rows || shard.back() != rows + shard.count - 1)) return false;
    rows += shard.count;
  }
  return true;
}

/// Words of the error with which a schedule of schedules_on refuses the problem; nothing when it serves it.
inline std::optional<std::string> documented_refusal(std::string_view schedule,
                                                     const plan::Problem& problem) {
  const int ranks = problem.ranks();
  if (schedule == "topology-burst" || schedule == "hierarchical" || schedule == "double-ring") {
    if (!problem.topology.is_uniform()) return "the same number of ranks on every node";
  }
  if (schedule == "helper-worker" && ranks > 1) {
    if (!consecutive(problem)) return "no layout of consecutive intervals";
    if (problem.mask.rule().right != 0) return "earlier tokens attend to later ones";
  }
  int exchanging = 0;  // ranks that exchange heads
  if (schedule == "ulysses") exchanging = ranks;
  if (schedule.starts_with("hybrid:")) {
    std::string_view grid = schedule.substr(7);
    exchanging = take_number<int>(grid).value();
  }
  if (problem.heads < exchanging) return "query heads are too few";
  return std::nullopt;
}

}  // namespace annulus::test
