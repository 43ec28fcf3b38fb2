#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "positions.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

using test::positions;

using testing::HasSubstr;

const std::vector<std::string> all_layouts{"contiguous",      "zigzag",          "striped",
                                           "block-striped:1", "block-striped:2", "block-striped:5",
                                           "block-striped:64"};

std::vector<std::int64_t> positions(const char* layout, std::int64_t tokens, int ranks, int rank) {
  return positions(Layout::parse(layout).shard(tokens, ranks, rank));
}

/// The rank that holds `position`, by the definition of each layout in words rather than by position maps.
int owner(const Layout& layout, std::int64_t tokens, int ranks, std::int64_t position) {
  if (layout.kind() == Layout::Kind::striped) return static_cast<int>(position % ranks);
  if (layout.kind() == Layout::Kind::block_striped)
    return static_cast<int>(position / layout.stripe() % ranks);
  const std::int64_t chunks = layout.kind() == Layout::Kind::zigzag ? 2 * ranks : ranks;
  std::int64_t chunk = 0;
  for (std::int64_t end = 0; chunk < chunks; ++chunk) {
    end += tokens / chunks + (chunk < tokens % chunks ? 1 : 0);
    if (position < end) break;
  }
  return static_cast<int>(chunk < ranks ? chunk : chunks - 1 - chunk);
}

TEST(Layout, EveryTokenHasOneOwnerAndShardsIncrease) {
  for (const std::string& text : all_layouts) {
    const Layout layout = Layout::parse(text);
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (std::int64_t tokens = 0; tokens <= 40; ++tokens) {
        std::int64_t held = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const PositionMap shard = layout.shard(tokens, ranks, rank);
          held += shard.count;
          for (std::int64_t i = 0; i < shard.count; ++i) {
            ASSERT_TRUE(shard(i) >= 0 && shard(i) < tokens);
            ASSERT_TRUE(i == 0 || shard(i - 1) < shard(i))
                << text << " N " << tokens << " rank " << rank << '/' << ranks;
            ASSERT_EQ(owner(layout, tokens, ranks, shard(i)), rank)
                << text << " N " << tokens << " G " << ranks << " position " << shard(i);
          }
        }
        ASSERT_EQ(held, tokens) << text << " G " << ranks;
      }
    }
  }
}

TEST(Layout, AListOfPositionsHasThoseOfAllRows) {
  std::vector<Layout> layouts = {
      Layout::parse("balanced").for_mask(Mask::parse("documents:0,5,14,17+causal", 40), 2)};
  for (const std::string& text : all_layouts) layouts.push_back(Layout::parse(text));
  for (const Layout& layout : layouts) {
    for (const RowRange rows : {RowRange{0, 100}, RowRange{2, 7}, RowRange{3, 3}}) {
      const PositionMap shard = layout.shard(40, 2, 1);
      const PositionMap part =
          shard.slice({std::min(rows.begin, shard.count), std::min(rows.end, shard.count)});
      std::vector<std::int32_t> list(static_cast<std::size_t>(part.count));
      EXPECT_EQ(part.list(list.data()), list.data() + list.size());
      for (std::int64_t i = 0; i < part.count; ++i) EXPECT_EQ(list[static_cast<std::size_t>(i)], part(i));
    }
  }
}

TEST(Layout, ShardsOfNeighboursTogetherHaveTheirRowsInOrder) {
  for (const std::string& text : all_layouts) {
    const Layout layout = Layout::parse(text);
    for (int ranks = 1; ranks <= 7; ++ranks) {
      for (std::int64_t tokens = 0; tokens <= 40; ++tokens) {
        for (int first = 0; first < ranks; ++first) {
          std::vector<std::int64_t> together;
          for (int last = first + 1; last <= ranks; ++last) {
            for (const std::int64_t p : positions(layout.shard(tokens, ranks, last - 1)))
              together.push_back(p);
            std::ranges::sort(together);
            ASSERT_EQ(positions(layout.shards(tokens, ranks, first, last)), together)
                << text << " N " << tokens << " ranks " << first << " to " << last << " of " << ranks;
          }
        }
      }
    }
  }
}

TEST(Layout, ShardsByHand) {
  using Values = std::vector<std::int64_t>;
  EXPECT_EQ(positions("contiguous", 8, 3, 0), (Values{0, 1, 2}));
  EXPECT_EQ(positions("contiguous", 8, 3, 1), (Values{3, 4, 5}));
  EXPECT_EQ(positions("contiguous", 8, 3, 2), (Values{6, 7}));
  EXPECT_EQ(positions("zigzag", 10, 2, 0), (Values{0, 1, 2, 8, 9}));  // chunks of 3, 3, 2, 2
  EXPECT_EQ(positions("zigzag", 10, 2, 1), (Values{3, 4, 5, 6, 7}));
  EXPECT_EQ(positions("zigzag", 1, 2, 0), (Values{0}));
  EXPECT_EQ(positions("zigzag", 1, 2, 1), (Values{}));
  EXPECT_EQ(positions("striped", 7, 3, 1), (Values{1, 4}));
  EXPECT_EQ(positions("block-striped:2", 11, 2, 0), (Values{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(positions("block-striped:2", 11, 2, 1), (Values{2, 3, 6, 7, 10}));
  EXPECT_EQ(positions("block-striped:9223372036854775807", 3, 2, 0), (Values{0, 1, 2}));
}

TEST(Layout, LongSequences) {
  const std::int64_t tokens = (std::int64_t{1} << 31) - 5;
  for (const std::string& text : all_layouts) {
    std::int64_t held = 0, last = 0;
    for (int rank = 0; rank < 1000; ++rank) {
      const PositionMap shard = Layout::parse(text).shard(tokens, 1000, rank);
      held += shard.count;
      last = std::max(last, shard.back());
    }
    EXPECT_EQ(held, tokens) << text;
    EXPECT_EQ(last, tokens - 1) << text;
  }
}

TEST(PositionMap, SlicesAndRowsBelowAreExact) {
  for (const std::string& text : all_layouts) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (std::int64_t tokens = 0; tokens <= 24; ++tokens) {
        for (int rank = 0; rank < ranks; ++rank) {
          const PositionMap shard = Layout::parse(text).shard(tokens, ranks, rank);
          const std::vector<std::int64_t> rows = positions(shard);
          for (std::int64_t begin = 0; begin <= shard.count; ++begin) {
            for (std::int64_t end = begin; end <= shard.count; ++end) {
              const PositionMap slice = shard.slice({begin, end});
              const std::vector<std::int64_t> expected(rows.begin() + begin, rows.begin() + end);
              ASSERT_EQ(positions(slice), expected);
              for (std::int64_t position = -2; position <= tokens + 2; ++position) {
                const auto below =
                    std::lower_bound(expected.begin(), expected.end(), position) - expected.begin();
                ASSERT_EQ(slice.rows_below(position), below)
                    << text << " N " << tokens << " rank " << rank << '/' << ranks << " rows " << begin << ':'
                    << end << " at " << position;
              }
              if (slice.count < 2) continue;  // a slice of a slice
              ASSERT_EQ(slice.slice({1, slice.count}), shard.slice({begin + 1, end}));
            }
          }
        }
      }
    }
  }
}

TEST(PositionMap, SingleRowNeedsNoSteps) {
  const PositionMap row{.base = 7, .count = 1};
  EXPECT_EQ(row.rows_below(7), 0);
  EXPECT_EQ(row.rows_below(8), 1);
  EXPECT_EQ(PositionMap{}.rows_below(3), 0);
}

TEST(PositionMap, SingleBlockNeedsNoDistance) {
  for (const std::int64_t hi : {0, 1, 100}) {
    const PositionMap block{.base = 3, .hi = hi, .lo = 2, .block = 8, .count = 6};  // 3, 5, …, 13
    for (std::int64_t position = 0; position < 20; ++position)
      EXPECT_EQ(block.rows_below(position), std::clamp<std::int64_t>((position - 2) / 2, 0, 6))
          << "hi " << hi;
  }
}

TEST(Layout, TextRoundTrip) {
  for (const std::string& text : all_layouts) {
    EXPECT_EQ(Layout::parse(text).to_string(), text);
    EXPECT_EQ(Layout::parse(Layout::parse(text).to_string()), Layout::parse(text));
  }
  EXPECT_EQ(Layout(), Layout::parse("contiguous"));
  EXPECT_NE(Layout::parse("block-striped:2"), Layout::parse("block-striped:3"));
}

TEST(Layout, ErrorsNameFieldAndRemedy) {
  EXPECT_THAT(
      error_text([] { Layout::parse("spiral", "train.layout"); }),
      mentions("train.layout = 'spiral'", "contiguous, zigzag, striped, block-striped:B", "balanced"));
  EXPECT_THAT(error_text([] { Layout::parse("zig-zag"); }), HasSubstr("did you mean 'zigzag'?"));
  EXPECT_THAT(error_text([] { Layout::parse("block-stripe:8"); }),
              HasSubstr("did you mean 'block-striped'?"));
  for (const char* text : {"block-striped:", "block-striped:0", "block-striped:-4", "block-striped:4x",
                           "block-striped: 4", "block-striped:99999999999999999999"})
    EXPECT_THAT(error_text([&] { Layout::parse(text); }),
                mentions(std::string("layout = '") + text + "'", "block-striped:64"));
  EXPECT_THAT(error_text([] { Layout::parse("block-striped"); }),
              HasSubstr("write for instance block-striped:64"));
  EXPECT_THAT(error_text([] { Layout(Layout::Kind::zigzag, 2); }), HasSubstr("belong to block-striped only"));
  EXPECT_THAT(error_text([] { Layout(Layout::Kind::block_striped, 0); }), HasSubstr("at least one token"));
  EXPECT_THAT(error_text([] { Layout().shard(-1, 2, 0); }), HasSubstr("-1 tokens"));
  EXPECT_THAT(error_text([] { Layout().shard(8, 2, 2); }), HasSubstr("no rank 2 among 2 ranks"));
  EXPECT_THAT(error_text([] { Layout().shard(8, 2, -1); }), HasSubstr("no rank -1"));
}

}  // namespace
}  // namespace annulus
