#include <annulus/attention/sequence/mask_rule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
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

/// What the tile really holds.
Coverage exact_coverage(const LiteralMask& mask, const PositionMap& q, const PositionMap& k) {
  const std::int64_t pairs = mask.pairs(q, k);
  return pairs == 0 ? Coverage::empty : pairs == q.count * k.count ? Coverage::full : Coverage::partial;
}

bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(MaskRule, KeysAndAllowsFollowTheDefinition) {
  std::mt19937 random(1);
  const TemporaryFolder folder;
  for (std::int64_t tokens = 0; tokens <= 40; ++tokens) {
    for (const LiteralMask& literal : test::literal_masks(tokens, random, folder)) {
      const Mask mask = Mask::parse(literal.text, tokens);
      const MaskRule rule = mask.rule();
      for (std::int64_t q = 0; q < tokens; ++q) {
        const KeyRange keys = rule.keys(q);
        std::vector<char> listed(static_cast<std::size_t>(tokens));
        for (std::int64_t k = keys.begin; k < keys.end; k += keys.stride)
          listed.at(static_cast<std::size_t>(k)) = 1;
        for (std::int64_t k = 0; k < tokens; ++k) {
          const bool in_keys = listed[static_cast<std::size_t>(k)] != 0;
          ASSERT_EQ(keys.contains(k), in_keys) << literal.text << " q " << q << " k " << k;
          ASSERT_EQ(in_keys && rule.block_allows(q, k), literal(q, k))
              << literal.text << " q " << q << " k " << k;
          ASSERT_EQ(rule.allows(q, k), literal(q, k)) << literal.text << " q " << q << " k " << k;
        }
      }
    }
  }
}

TEST(MaskRule, QueriesOfAKeyMirrorTheKeysOfAQuery) {
  std::mt19937 random(2);
  const TemporaryFolder folder;
  for (const LiteralMask& literal : test::literal_masks(33, random, folder)) {
    const Mask mask = Mask::parse(literal.text, 33);
    const MaskRule rule = mask.rule();
    for (std::int64_t q = 0; q < 33; ++q)
      for (std::int64_t k = 0; k < 33; ++k)
        ASSERT_EQ(rule.key_range(q, rule.left, rule.right).contains(k),
                  rule.key_range(k, rule.right, rule.left).contains(q))
            << literal.text << " q " << q << " k " << k;
  }
}

/// Classifies all tiles of `rows` rows of all shard pairs and compares with what they hold. Counts the
/// decided ones.
void check_tiles(const LiteralMask& literal, const Layout& layout, int ranks, std::int64_t rows,
                 std::int64_t& decided) {
  const Mask mask = Mask::parse(literal.text, literal.tokens);
  const MaskRule rule = mask.rule();
  const bool dilated = holds(literal.text, "dilated"), listed = holds(literal.text, "blocks");
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < ranks; ++b) {
      const PositionMap q_shard = layout.shard(literal.tokens, ranks, a),
                        k_shard = layout.shard(literal.tokens, ranks, b);
      for (std::int64_t i = 0; i < q_shard.count; i += rows) {
        for (std::int64_t j = 0; j < k_shard.count; j += rows) {
          const PositionMap q = q_shard.slice({i, std::min(i + rows, q_shard.count)});
          const PositionMap k = k_shard.slice({j, std::min(j + rows, k_shard.count)});
          const Coverage found = rule.classify(q, k), exact = exact_coverage(literal, q, k);
          const auto where = [&] {
            return literal.text + " " + layout.to_string() + " N " + std::to_string(literal.tokens) + " G " +
                   std::to_string(ranks) + " tile of " + std::to_string(rows) + " rows at " +
                   std::to_string(q.front()) + "," + std::to_string(k.front());
          };
          if (found != Coverage::partial) {
            ASSERT_EQ(found, exact) << where();
            ++decided;
            continue;
          }
          // Where interval ends decide, nothing must be missed.
          const bool contiguous = layout.kind() == Layout::Kind::contiguous,
                     single = !holds(literal.text, "+");
          ASSERT_FALSE(exact == Coverage::full && !dilated && !listed) << where();
          ASSERT_FALSE(exact == Coverage::empty && literal.text == "causal") << where();
          ASSERT_FALSE(exact != Coverage::partial && contiguous && !dilated && (!listed || single))
              << where();
        }
      }
    }
  }
}

TEST(MaskRule, TilesAreNeverMisjudgedAndMostlyDecided) {
  std::mt19937 random(3);
  const TemporaryFolder folder;
  for (const std::int64_t tokens : {1, 2, 7, 24, 40}) {
    for (const LiteralMask& literal : test::literal_masks(tokens, random, folder)) {
      std::int64_t decided = 0;
      for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:3", "balanced"})
        for (int ranks = 1; ranks <= 5; ++ranks)
          for (const std::int64_t rows : {1, 3, 4, 100})
            ASSERT_NO_FATAL_FAILURE(
                check_tiles(literal, test::cut_layout(layout, tokens, ranks), ranks, rows, decided));
      EXPECT_GT(decided, 0) << literal.text << " N " << tokens;
    }
  }
}

TEST(MaskRule, CausalTilesOfListedBlocksAreDecided) {
  const TemporaryFolder folder;
  const std::string list =
      folder.write("list.txt", "annulus-block-mask 1\nblocks 4\n0:0\n1:0-1\n2:\n3:0-3\nend\n");
  const Mask mask = Mask::parse("causal+blocks:8," + list, 32);
  const PositionMap all = Layout().shard(32, 1, 0), q = all.slice({24, 32});
  EXPECT_EQ(mask.rule().classify(q, all.slice({0, 24})), Coverage::full);
  EXPECT_EQ(mask.rule().classify(q, q), Coverage::partial);
  EXPECT_EQ(mask.rule().classify(q, PositionMap{}), Coverage::empty);
}

TEST(MaskRule, GapsOfTilesAreSeen) {
  const Mask mask = Mask::parse("window:1,1", 1000);
  const PositionMap q{.base = 0, .hi = 100, .lo = 100, .block = 1, .count = 10};
  const PositionMap gap{.base = 110, .hi = 80, .block = 80, .count = 80};
  EXPECT_EQ(mask.rule().classify(q, gap), Coverage::empty);
  EXPECT_EQ(mask.rule().classify(gap, q), Coverage::empty);
}

TEST(MaskRule, ResiduesDecideDilationOnStripes) {
  // With ranks divisible by the dilation, q − k has one residue for all rows of a pair of shards.
  const Mask mask = Mask::parse("dilated:1000,2", 64);
  const Layout striped = Layout::parse("striped");
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      const PositionMap q = striped.shard(64, 4, a).slice({8, 16}), k = striped.shard(64, 4, b).slice({0, 8});
      EXPECT_EQ(mask.rule().classify(q, k), (a - b) % 2 == 0 ? Coverage::full : Coverage::empty);
    }
  }
}

// Keys one by one beside lists of blocks: what a list holds, they leave out.
TEST(MaskRule, ListedKeysOutsideTheListsAreClassifiedWithoutError) {
  std::mt19937 random(9);
  constexpr std::int64_t tokens = 60, size = 8, blocks = 8;
  int found[3] = {};
  for (int sample = 0; sample < 2000; ++sample) {
    std::vector<std::int64_t> starts, columns;
    const unsigned sparse = 1 + random() % 4;
    for (std::int64_t row = 0; row < blocks; ++row) {
      starts.push_back(std::ssize(columns));
      for (std::int64_t column = 0; column < blocks; ++column)
        if (random() % sparse == 0) columns.push_back(column);
    }
    starts.push_back(std::ssize(columns));
    MaskRule rule{.tokens = tokens, .right = 0};
    rule.block_size = size;
    rule.block_row_starts = starts.data();
    rule.block_columns = columns.data();
    rule.blocks_excluded = true;
    std::vector<std::int64_t> listed;  // positions from `tokens` on fill up
    for (std::int64_t k = random() % 20; k < tokens + 3; k += 1 + random() % 9) listed.push_back(k);
    if (listed.empty()) continue;
    const KeyPositions all = KeyPositions::of_list(listed.data(), std::ssize(listed));
    for (std::int64_t p = 0; p <= tokens + 4; ++p)
      ASSERT_EQ(all.rows_below(p), std::ranges::count_if(listed, [p](std::int64_t k) { return k < p; }));
    const std::int64_t first = random() % listed.size(),
                       last = first + 1 + random() % (listed.size() - first);
    const KeyPositions keys = all.slice({first, std::min<std::int64_t>(last, std::ssize(listed))});
    const std::int64_t row = random() % tokens;
    const PositionMap q =
        Layout().shard(tokens, 1, 0).slice({row, std::min<std::int64_t>(row + 1 + random() % 20, tokens)});
    bool some = false, missing = false;
    for (std::int64_t i = 0; i < q.count; ++i) {
      for (std::int64_t j = 0; j < keys.count(); ++j) {
        bool in_list = false;
        for (std::int64_t c = starts[q(i) / size]; c < starts[q(i) / size + 1]; ++c)
          in_list = in_list || columns[c] == keys(j) / size;
        const bool allowed = keys(j) <= q(i) && keys(j) < tokens && !in_list;
        (allowed ? some : missing) = true;
        ASSERT_EQ(keys(j) < tokens && rule.allows(q(i), keys(j)), allowed);
      }
    }
    const Coverage coverage = rule.classify(q, keys);
    ++found[static_cast<int>(coverage)];
    ASSERT_FALSE(coverage == Coverage::empty && some) << "sample " << sample;
    ASSERT_FALSE(coverage == Coverage::full && missing) << "sample " << sample;
  }
  for (const int times : found) EXPECT_GT(times, 20);
}

}  // namespace
}  // namespace annulus
