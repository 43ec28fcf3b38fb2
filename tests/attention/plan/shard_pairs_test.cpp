#include <gtest/gtest.h>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {
namespace {

/// The smallest range of the first argument of `meets` for which some row of the second does.
template <class Meets>
RowRange range_by_trying(std::int64_t rows, std::int64_t others, const Meets& meets) {
  RowRange range;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t other = 0; other < others; ++other) {
      if (!meets(row, other)) continue;
      if (range.empty()) range.begin = row;
      range.end = row + 1;
    }
  }
  return range;
}

void expect_smallest(const Problem& problem) {
  const MaskRule rule = problem.mask.rule();
  const ShardPairs shard_pairs(problem);
  for (int i = 0; i < problem.ranks(); ++i) {
    for (int j = 0; j < problem.ranks(); ++j) {
      const PositionMap q = problem.shard(i), k = problem.shard(j);
      const RowRange queries = range_by_trying(
          q.count, k.count, [&](std::int64_t a, std::int64_t b) { return rule.allows(q(a), k(b)); });
      const RowRange keys = range_by_trying(
          k.count, q.count, [&](std::int64_t b, std::int64_t a) { return rule.allows(q(a), k(b)); });
      const ActiveRows active = shard_pairs.of(i, j);
      EXPECT_EQ(active.q.begin, queries.begin) << i << " " << j;
      EXPECT_EQ(active.q.end, queries.end) << i << " " << j;
      EXPECT_EQ(active.kv.begin, keys.begin) << i << " " << j;
      EXPECT_EQ(active.kv.end, keys.end) << i << " " << j;
      EXPECT_EQ(shard_pairs.any(i, j), !queries.empty());
    }
  }
}

TEST(ShardPairs, IsTheSmallestRange) {
  const test::BlockFile file({"0-1 5", "", "2 4-5", "0 3", "1 7", "5", "0-7", "3 7"});
  for (const std::string& layout : test::all_layouts) {
    for (const int ranks : {1, 3, 5}) {
      for (const std::int64_t tokens : {2, 45}) {
        std::vector<std::string> masks = test::masks_of(tokens);
        if (tokens == 45 && layout != "balanced") masks.push_back(file.mask(6));
        for (const std::string& mask : masks) {
          SCOPED_TRACE(testing::Message() << layout << ", " << mask << ", " << tokens << " on " << ranks);
          expect_smallest(test::make_problem(ranks, tokens, layout, mask));
        }
      }
    }
  }
}

TEST(ShardPairs, DistancesWithoutActivePairs) {
  const ShardPairs shard_pairs(test::make_problem(6, 60, "contiguous", "window:12,0"));
  EXPECT_EQ(shard_pairs.hops(), (std::vector<bool>{true, true, true, false, false, false}));
  EXPECT_EQ(shard_pairs.of(2, 0).kv, (RowRange{8, 10}));
  EXPECT_EQ(shard_pairs.of(2, 0).q, (RowRange{0, 2}));
}

}  // namespace
}  // namespace annulus::plan
