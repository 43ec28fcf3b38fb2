#include "attention/plan/validate/partition.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace annulus::plan {

namespace {

/// Positions begin … end − 1 lie on rank `rank`.
struct HeldPositions {
  std::int64_t begin = 0, end = 0;
  int rank = 0;
};

std::string range_text(std::int64_t begin, std::int64_t end) {
  return end - begin == 1 ? fmt::format("position {} of the sequence lies", begin)
                          : fmt::format("positions {} to {} of the sequence lie", begin, end - 1);
}

}  // namespace

std::vector<std::string> partition_violations(std::int64_t tokens, std::span<const PositionMap> shards) {
  std::vector<HeldPositions> held;
  for (int rank = 0; rank < std::ssize(shards); ++rank) {
    const PositionMap& shard = shards[static_cast<std::size_t>(rank)];
    for (std::int64_t row = 0; row < shard.count;) {
      const std::int64_t end = shard.end_of_run(row);
      held.push_back({shard(row), shard(row) + end - row, rank});
      row = end;
    }
  }
  std::ranges::sort(held, {}, &HeldPositions::begin);
  std::vector<std::string> wrong;
  HeldPositions before;  // the one that ends last so far
  const auto add = [&](const HeldPositions& next) {
    if (next.begin > before.end)
      wrong.push_back(fmt::format("{} on no rank", range_text(before.end, next.begin)));
    if (next.begin < before.end)
      wrong.push_back(fmt::format("{} on rank {} and on rank {}",
                                  range_text(next.begin, std::min(next.end, before.end)), before.rank,
                                  next.rank));
    if (next.end > before.end) before = next;
  };
  for (const HeldPositions& next : held) add(next);
  if (before.end < tokens) wrong.push_back(fmt::format("{} on no rank", range_text(before.end, tokens)));
  if (before.end > tokens)
    wrong.push_back(fmt::format("{} behind its end, on rank {}",
                                range_text(std::max(tokens, before.begin), before.end), before.rank));
  return wrong;
}

std::vector<std::string> partition_violations(const Problem& problem) {
  if (problem.layout.runs().empty()) return {};  // a formula, which cannot go wrong for one sequence alone
  std::vector<PositionMap> shards;
  for (int rank = 0; rank < problem.ranks(); ++rank) shards.push_back(problem.owned(rank));
  return partition_violations(problem.mask.tokens(), shards);
}

}  // namespace annulus::plan
