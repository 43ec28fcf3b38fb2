#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>

#include "literal_mask.hpp"
#include "positions.hpp"

namespace annulus {
namespace {

using test::LiteralMask;
using test::TemporaryFolder;

const std::vector<std::string> all_layouts{"contiguous",      "zigzag",          "striped",
                                           "block-striped:3", "block-striped:8", "balanced"};

::testing::AssertionResult agrees(const Mask& mask, const LiteralMask& literal, const PositionMap& q,
                                  const PositionMap& k) {
  const std::int64_t expected = literal.pairs(q, k), found = mask.pairs(q, k);
  if (found == expected && mask.is_empty(q, k) == (expected == 0)) return ::testing::AssertionSuccess();
  const auto describe = [](const PositionMap& map) {
    return std::to_string(map.base) + "/" + std::to_string(map.hi) + "/" + std::to_string(map.lo) + "/" +
           std::to_string(map.block) + "/" + std::to_string(map.first) + "/" + std::to_string(map.count);
  };
  return ::testing::AssertionFailure()
         << literal.text << " N " << literal.tokens << ": " << found << " pairs, not " << expected
         << ", empty " << mask.is_empty(q, k) << ", q " << describe(q) << ", k " << describe(k);
}

TEST(PairCount, ShardPairsAreExact) {
  std::mt19937 random(1);
  const TemporaryFolder folder;
  for (std::int64_t tokens = 0; tokens <= 40; ++tokens) {
    for (const LiteralMask& literal : test::literal_masks(tokens, random, folder)) {
      const Mask mask = Mask::parse(literal.text, tokens);
      for (const std::string& text : all_layouts) {
        for (int ranks = 1; ranks <= 9; ++ranks) {
          const Layout layout = test::cut_layout(text, tokens, ranks);
          for (int a = 0; a < ranks; ++a)
            for (int b = 0; b < ranks; ++b)
              ASSERT_TRUE(
                  agrees(mask, literal, layout.shard(tokens, ranks, a), layout.shard(tokens, ranks, b)))
                  << text << " ranks " << a << ',' << b << " of " << ranks;
        }
      }
    }
  }
}

/// Slices of shards and of what neighbours hold together, also of different layouts and numbers of ranks.
void check_random_slices(std::int64_t tokens, int draws, std::mt19937& random,
                         const TemporaryFolder& folder) {
  const auto any = [&random](std::int64_t begin, std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(begin, end)(random);
  };
  std::deque<Layout> cut;  // which own what slices borrow
  const auto any_slice = [&](const std::string& text, int ranks) {
    const Layout& layout = cut.emplace_back(test::cut_layout(text, tokens, ranks));
    const int first = static_cast<int>(any(0, ranks - 1));
    const int last = any(0, 1) == 0 ? first + 1 : static_cast<int>(any(first + 1, ranks));
    const PositionMap shard = layout.shards(tokens, ranks, first, last);
    const std::int64_t a = any(0, shard.count), b = any(0, shard.count);
    return shard.slice({std::min(a, b), std::max(a, b)});
  };
  const auto any_layout = [&] {
    return all_layouts[static_cast<std::size_t>(any(0, static_cast<std::int64_t>(all_layouts.size()) - 1))];
  };
  for (const LiteralMask& literal : test::literal_masks(tokens, random, folder)) {
    const Mask mask = Mask::parse(literal.text, tokens);
    for (int draw = 0; draw < draws; ++draw) {
      cut.clear();
      const std::string layout = any_layout();
      const int ranks = static_cast<int>(any(1, 9));
      ASSERT_TRUE(agrees(mask, literal, any_slice(layout, ranks), any_slice(layout, ranks)));
      ASSERT_TRUE(agrees(mask, literal, any_slice(any_layout(), static_cast<int>(any(1, 9))),
                         any_slice(any_layout(), static_cast<int>(any(1, 9)))));
    }
  }
}

TEST(PairCount, SlicesAreExact) {
  std::mt19937 random(2);
  const TemporaryFolder folder;
  for (const std::int64_t tokens : {1, 2, 3, 10, 31, 64, 97})
    ASSERT_NO_FATAL_FAILURE(check_random_slices(tokens, 60, random, folder));
}

TEST(PairCount, SlicesAreExactSlow) {
  std::mt19937 random(3);
  const TemporaryFolder folder;
  for (std::int64_t tokens = 1; tokens <= 300; tokens += 13)
    ASSERT_NO_FATAL_FAILURE(check_random_slices(tokens, 600, random, folder));
}

/// Sum over all pairs of shards.
std::int64_t total(const Mask& mask, const std::string& layout, int ranks) {
  std::int64_t sum = 0;
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b)
      sum += mask.pairs(Layout::parse(layout).shard(mask.tokens(), ranks, a),
                        Layout::parse(layout).shard(mask.tokens(), ranks, b));
  return sum;
}

TEST(PairCount, LongSequencesAddUp) {
  for (const std::int64_t n : {Mask::max_tokens, Mask::max_tokens - 7, std::int64_t{1'000'003}}) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:65536"}) {
      for (const int ranks : {1, 3, 8}) {
        SCOPED_TRACE(std::string(layout) + " N " + std::to_string(n) + " G " + std::to_string(ranks));
        EXPECT_EQ(total(Mask::parse("full", n), layout, ranks), n * n);
        EXPECT_EQ(total(Mask::parse("causal", n), layout, ranks), n * (n + 1) / 2);
        const std::int64_t window = 4095;
        EXPECT_EQ(total(Mask::parse("window:4095,0", n), layout, ranks),
                  (window + 1) * n - window * (window + 1) / 2);
        std::int64_t dilated = 0;
        for (std::int64_t i = 0; i < 1000; ++i) dilated += n - 48 * i;
        EXPECT_EQ(total(Mask::parse("dilated:1000,48", n), layout, ranks), dilated);
        const std::int64_t rest = n - 500'000;
        EXPECT_EQ(total(Mask::parse("documents:0,500000", n), layout, ranks),
                  (500'000LL * 500'001LL + rest * (rest + 1)) / 2);
      }
    }
  }
}

TEST(PairCount, RowsWithoutKeysCountNothing) {
  const Mask mask = Mask::parse("causal", 10);
  const PositionMap all = Layout().shard(10, 1, 0), none{};
  EXPECT_EQ(mask.pairs(all, none), 0);
  EXPECT_EQ(mask.pairs(none, all), 0);
  EXPECT_TRUE(mask.is_empty(none, none));
  EXPECT_EQ(mask.pairs({.base = 4, .count = 1}, {.base = 4, .count = 1}), 1);
  EXPECT_TRUE(mask.is_empty({.base = 4, .count = 1}, {.base = 5, .count = 1}));
}

}  // namespace
}  // namespace annulus
