// Which rows of a shard other ranks need, and where rings bring them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/needs/ring_routes.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {
namespace {

/// Rows of each shard that meet each other shard, by asking for every pair of rows.
class Literal {
 public:
  Literal(const Problem& problem, Side side) {
    const MaskRule rule = problem.mask.rule();
    const int ranks = problem.ranks();
    rows_.resize(static_cast<std::size_t>(ranks), std::vector<RowRange>(static_cast<std::size_t>(ranks)));
    for (int owner = 0; owner < ranks; ++owner) {
      const PositionMap own = problem.shard(owner);
      for (int rank = 0; rank < ranks; ++rank) {
        const PositionMap other = problem.shard(rank);
        for (std::int64_t i = 0; i < own.count; ++i) {
          for (std::int64_t j = 0; j < other.count; ++j) {
            const bool meet =
                side == Side::query ? rule.allows(own(i), other(j)) : rule.allows(other(j), own(i));
            if (meet) at(owner, rank) = hull(at(owner, rank), {i, i + 1});
          }
        }
      }
    }
  }
  RowRange rows(int owner, int rank) const {
    return rows_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(rank)];
  }

 private:
  RowRange& at(int owner, int rank) {
    return rows_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(rank)];
  }
  std::vector<std::vector<RowRange>> rows_;
};

/// Hops 0 … last with the smallest range of rows that each needs.
void expect_span(const HopSpan& span, const std::vector<RowRange>& needed) {
  int first = 0, last = -1;
  for (int hop = 0; hop < static_cast<int>(needed.size()); ++hop) {
    if (needed[static_cast<std::size_t>(hop)].empty()) continue;
    if (first == 0) first = hop;
    last = hop;
  }
  EXPECT_EQ(span.last, last);
  EXPECT_EQ(span.first, first);
}

RowRange hull_of(const std::vector<RowRange>& rows, Hops hops) {
  RowRange all;
  for (int hop = hops.first; hop <= hops.last; ++hop) all = hull(all, rows[static_cast<std::size_t>(hop)]);
  return all;
}

void check_reach(const Problem& problem, Side side, int inner_size) {
  const RingRoutes routes(problem, side, inner_size);
  const Literal literal(problem, side);
  const bool cuts = routes.shard_pairs().cuts();
  std::vector<std::vector<bool>> used;  // by outer and inner hop
  for (int outer = 0; outer <= routes.last_outer(); ++outer) {
    used.emplace_back(static_cast<std::size_t>(std::max(routes.last_inner(outer), 0)) + 1);
  }
  for (int owner = 0; owner < problem.ranks(); ++owner) {
    std::map<int, int> visits;  // of ranks that need the shard
    std::vector<RowRange> by_group;
    for (int outer = 0; outer <= routes.last_outer(); ++outer) {
      std::vector<RowRange> by_rank;
      for (int inner = 0; inner <= routes.last_inner(outer); ++inner) {
        const Hop hop{outer, inner};
        const int rank = routes.rank_at(owner, hop);
        EXPECT_EQ(routes.owner_at(rank, hop), owner);
        by_rank.push_back(literal.rows(owner, rank));
        EXPECT_EQ(routes.needs(owner, hop), !by_rank.back().empty());
        if (by_rank.back().empty()) continue;
        ++visits[rank];
        used[static_cast<std::size_t>(outer)][static_cast<std::size_t>(inner)] = true;
      }
      expect_span(routes.inner(owner, outer), by_rank);
      for (int hop = 0; cuts && hop < static_cast<int>(by_rank.size()); ++hop) {
        const Hops from{hop, static_cast<int>(by_rank.size()) - 1}, until{0, hop};
        EXPECT_EQ(routes.inner_rows(owner, outer, from), hull_of(by_rank, from));
        EXPECT_EQ(routes.inner_rows(owner, outer, until), hull_of(by_rank, until));
      }
      by_group.push_back(hull_of(by_rank, {0, static_cast<int>(by_rank.size()) - 1}));
      EXPECT_EQ(routes.inner_ring_needs(owner, outer), !by_group.back().empty());
    }
    expect_span(routes.outer(owner), by_group);
    for (int hop = 0; cuts && hop < static_cast<int>(by_group.size()); ++hop) {
      const Hops from{hop, routes.last_outer()};
      EXPECT_EQ(routes.outer_rows(owner, from), hull_of(by_group, from));
    }
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      EXPECT_EQ(visits[rank], literal.rows(owner, rank).empty() ? 0 : 1) << "rank " << rank;
    }
  }
  for (std::size_t outer = 0; outer < used.size(); ++outer) {
    for (std::size_t inner = 1; inner < used[outer].size(); ++inner) {
      EXPECT_TRUE(used[outer][inner]) << "nobody needs anything at hop " << outer << ", " << inner;
    }
  }
}

TEST(RingRoutes, IsThatOfEveryPairOfRows) {
  const test::BlockFile file(test::block_rows);
  std::vector<std::string> all_layouts = test::layouts;
  all_layouts.push_back("block-striped:1");
  for (const std::string& layout : all_layouts) {
    for (const auto& [ranks, inner_size] : {std::pair{1, 1}, {4, 4}, {5, 5}, {6, 3}, {6, 1}, {8, 2}}) {
      for (const std::int64_t tokens : {3, 45}) {
        std::vector<std::string> masks = test::masks_of(tokens);
        if (tokens == 45) masks.push_back(file.mask(6));
        if (tokens == 45) masks.push_back("documents:0,9,11,12,30+" + file.mask(6) + "+window:20,0");
        for (const std::string& mask : masks) {
          for (const Side side : {Side::query, Side::key}) {
            SCOPED_TRACE(testing::Message() << layout << ", " << mask << ", " << tokens << " tokens on "
                                            << ranks << " ranks in groups of " << inner_size);
            check_reach(test::make_problem(ranks, tokens, layout, mask), side, inner_size);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

/// A mask of random terms.
std::string random_mask(std::int64_t tokens, std::mt19937& random) {
  const auto any = [&random](std::int64_t begin, std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(begin, end)(random);
  };
  std::string mask = "causal";
  if (any(0, 2) == 0) mask = fmt::format("window:{},{}", any(0, tokens), any(0, 9));
  if (any(0, 2) == 0) mask = fmt::format("causal+window:{},9", any(0, tokens / 2));
  if (any(0, 2) == 0) mask += fmt::format("+dilated:{},{}", any(1, 9), any(1, 9));
  if (any(0, 1) == 0) {
    mask += "+documents:0";
    for (std::int64_t start = any(1, 30); start < tokens; start += any(1, 30))
      mask += fmt::format(",{}", start);
  }
  return mask;
}

void check_random(int problems, unsigned seed) {
  std::mt19937 random(seed);
  const std::vector<std::string> all_layouts = {"contiguous",      "zigzag",          "striped",
                                                "block-striped:1", "block-striped:4", "block-striped:100"};
  for (int i = 0; i < problems; ++i) {
    const auto any = [&random](int begin, int end) {
      return std::uniform_int_distribution(begin, end)(random);
    };
    const int inner_size = any(1, 5), ranks = inner_size * any(1, 4);
    const std::int64_t tokens = any(1, 150);
    const std::string mask = random_mask(tokens, random);
    const std::string& layout = all_layouts[static_cast<std::size_t>(any(0, 5))];
    Problem problem = test::make_problem(ranks, tokens, layout, mask);
    if (any(0, 4) == 0)
      problem.grid = {inner_size, any(0, 1) == 0 ? GridPlacement::head_first : GridPlacement::context_first};
    SCOPED_TRACE(testing::Message() << layout << ", " << mask << ", " << tokens << " tokens on " << ranks
                                    << " ranks in groups of " << inner_size << ", grid "
                                    << problem.grid.ulysses_degree);
    for (const Side side : {Side::query, Side::key}) check_reach(problem, side, inner_size);
    const Literal literal(problem, Side::key);
    std::vector<bool> hops(static_cast<std::size_t>(ranks));
    const ShardPairs shard_pairs(problem);
    for (int kv = 0; kv < ranks; ++kv) {
      for (int hop = 0; hop < ranks; ++hop) {
        const bool meet = !literal.rows(kv, (kv + hop) % ranks).empty();
        if (meet) hops[static_cast<std::size_t>(hop)] = true;
        EXPECT_EQ(shard_pairs.any((kv + hop) % ranks, kv), meet);
        EXPECT_TRUE(meet || !shard_pairs.all_active());
      }
    }
    EXPECT_EQ(shard_pairs.hops(), hops);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RingRoutes, IsThatOfEveryPairOfRowsOfRandomProblems) {
  check_random(400, 1);
}

/// Nothing asks every rank about every other one: a plan of 8192 ranks is there at once.
TEST(RingRoutes, OfThousandsOfRanks) {
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:64"}) {
    for (const char* mask : {"full", "causal", "causal+window:4096,0", "documents:0,100,5000000,16000001"}) {
      Problem problem = test::make_problem(8192, std::int64_t{1} << 24, layout, mask);
      for (const int inner_size : {8, 8192}) {
        const RingRoutes routes(problem, Side::key, inner_size);
        for (const int owner : {0, 1, 4095, 8191}) {
          // Its own keys are attended to, and it is the owner that the inverse of its hops leads to.
          EXPECT_TRUE(routes.needs(owner, {0, 0}));
          const Hop farthest{routes.outer(owner).last, 0};
          EXPECT_EQ(routes.owner_at(routes.rank_at(owner, farthest), farthest), owner);
          EXPECT_TRUE(routes.inner_ring_needs(owner, farthest.outer));
        }
      }
    }
  }
}

void expect_smallest(const Problem& problem) {
  const Literal queries(problem, Side::query), keys(problem, Side::key);
  const ShardPairs shard_pairs(problem);
  for (int i = 0; i < problem.ranks(); ++i) {
    for (int j = 0; j < problem.ranks(); ++j) {
      const ActiveRows active = shard_pairs.of(i, j);
      EXPECT_EQ(active.q, queries.rows(i, j)) << i << " " << j;
      EXPECT_EQ(active.kv, keys.rows(j, i)) << i << " " << j;
      EXPECT_EQ(shard_pairs.any(i, j), !active.q.empty());
    }
  }
}

TEST(ShardPairs, IsTheSmallestRange) {
  const test::BlockFile file(test::block_rows);
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

/// A query of rank `i` attends to a key of rank `j`: by rows of both.
std::vector<std::vector<bool>> literal_pairs(const Problem& problem, int i, int j) {
  const PositionMap queries = problem.shard(i), keys = problem.shard(j);
  std::vector<std::vector<bool>> pairs;
  for (std::int64_t q = 0; q < queries.count; ++q) {
    std::vector<bool>& row = pairs.emplace_back();
    for (std::int64_t k = 0; k < keys.count; ++k)
      row.push_back(problem.mask.rule().allows(queries(q), keys(k)));
  }
  return pairs;
}

/// Every key that is attended to is in one part, which begins and ends with such keys, has no gap, and has
/// the smallest range of queries.
void expect_parts(const std::vector<std::vector<bool>>& pairs, const std::vector<ActiveRows>& parts) {
  const auto index = [](std::int64_t row) { return static_cast<std::size_t>(row); };
  const auto keys = pairs.empty() ? 0 : std::ssize(pairs.front());
  const auto attended = [&](std::int64_t key) {
    return std::ranges::any_of(pairs, [&](const auto& of_query) { return bool(of_query[index(key)]); });
  };
  std::int64_t last = -keys - 1;  // key that is attended to
  std::size_t part = 0;           // behind the one with it
  for (std::int64_t key = 0; key < keys; ++key) {
    if (!attended(key)) continue;
    if (16 * (key - last - 1) >= keys) {
      if (part > 0) {
        EXPECT_EQ(parts[part - 1].kv.end, last + 1);
      }
      ASSERT_LT(part, parts.size());
      EXPECT_EQ(parts[part++].kv.begin, key);
    }
    last = key;
  }
  ASSERT_EQ(part, parts.size());
  if (part == 0) return;
  EXPECT_EQ(parts.back().kv.end, last + 1);
  for (const ActiveRows& rows : parts) {
    RowRange queries;
    for (std::int64_t q = 0; q < std::ssize(pairs); ++q)
      for (std::int64_t key = rows.kv.begin; key < rows.kv.end; ++key)
        if (pairs[index(q)][index(key)]) queries = hull(queries, {q, q + 1});
    EXPECT_EQ(rows.q, queries);
  }
}

TEST(ShardPairs, PartsLeaveOutGapsBetweenKeysOfABalancedCut) {
  int several = 0;  // pairs with more than one part
  for (const int ranks : {3, 4, 7}) {
    for (const char* mask : {"documents:0,60,64,70", "causal+documents:0,36,54,67,85", "causal", "full",
                             "documents:0,2,25+window:9,0", "documents:0,10,20,30,31,32,40+window:9,4"}) {
      const Problem problem = test::make_problem(ranks, 131, "balanced", mask);
      const ShardPairs shard_pairs(problem);
      std::vector<int> most(static_cast<std::size_t>(ranks));
      for (int i = 0; i < ranks; ++i) {
        for (int j = 0; j < ranks; ++j) {
          SCOPED_TRACE(testing::Message() << mask << " on " << ranks << ", " << i << " " << j);
          const std::vector<ActiveRows> parts = shard_pairs.parts(i, j);
          expect_parts(literal_pairs(problem, i, j), parts);
          several += parts.size() > 1;
          int& of_hop = most[static_cast<std::size_t>(shard_pairs.turned(i, -j))];
          of_hop = std::max(of_hop, static_cast<int>(parts.size()));
        }
      }
      EXPECT_EQ(shard_pairs.most_parts(), most) << mask << " on " << ranks;
    }
  }
  EXPECT_GT(several, 15);
}

TEST(ShardPairs, DistancesWithoutActivePairs) {
  const ShardPairs shard_pairs(test::make_problem(6, 60, "contiguous", "window:12,0"));
  EXPECT_EQ(shard_pairs.hops(), (std::vector<bool>{true, true, true, false, false, false}));
  EXPECT_EQ(shard_pairs.of(2, 0).kv, (RowRange{8, 10}));
  EXPECT_EQ(shard_pairs.of(2, 0).q, (RowRange{0, 2}));
}

}  // namespace
}  // namespace annulus::plan
