// The layout `balanced`: who has which rows, and with how much work.
#include "attention/sequence/balanced_cut.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>

#include "positions.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

using test::positions;

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

Mask documents(const std::vector<std::int64_t>& lengths, const char* text = "causal+documents") {
  std::vector<std::int64_t> starts = starts_of(lengths);
  const std::int64_t tokens = starts.back();
  starts.pop_back();
  return Mask::with_documents(text, tokens, starts);
}

/// Lengths of documents that fill `tokens`, with this mean in the logarithm.
std::vector<std::int64_t> drawn_lengths(std::int64_t tokens, double mean, double deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> length(std::log(mean), deviation);
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0; left -= lengths.back())
    lengths.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, left));
  return lengths;
}

/// Unmasked pairs of the queries of a shard.
std::int64_t pairs_of(const Mask& mask, const PositionMap& shard) {
  const PositionMap all = Layout().shard(mask.tokens(), 1, 0);
  return mask.pairs(shard, all);
}

double imbalance(const Mask& mask, const Layout& layout, int ranks) {
  std::int64_t most = 0, sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t pairs = pairs_of(mask, layout.shard(mask.tokens(), ranks, rank));
    most = std::max(most, pairs);
    sum += pairs;
  }
  return static_cast<double>(most) * ranks / static_cast<double>(sum);
}

TEST(BalancedCut, EveryPositionHasOneOwnerAndShardsAreEqual) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = 1 + trial % 9;
    const auto lengths = drawn_lengths(static_cast<std::int64_t>(random() % 700), 30, 1.5, random());
    const char* text = std::to_array({"causal+documents", "window:20,0+documents", "window:5,3", "full",
                                      "causal", "dilated:7,3+documents"})[trial % 6];
    const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const Mask mask =
        std::string_view(text).ends_with("documents") ? documents(lengths, text) : Mask::parse(text, tokens);
    const Layout layout = Layout::parse("balanced").for_mask(mask, ranks, trial % 4);
    std::vector<int> owners(static_cast<std::size_t>(tokens), -1);
    for (int rank = 0; rank < ranks; ++rank) {
      const PositionMap shard = layout.shard(tokens, ranks, rank);
      ASSERT_EQ(shard.count, tokens / ranks + (rank < tokens % ranks)) << text << ' ' << trial;
      ASSERT_EQ(layout.cut_pairs()[static_cast<std::size_t>(rank)], pairs_of(mask, shard)) << text;
      const auto held = positions(shard);
      ASSERT_TRUE(std::ranges::is_sorted(held));
      for (const std::int64_t position : held) {
        ASSERT_EQ(std::exchange(owners.at(static_cast<std::size_t>(position)), rank), -1);
      }
      for (std::int64_t position = -1; position <= tokens + 1; ++position)
        ASSERT_EQ(shard.rows_below(position), std::ranges::lower_bound(held, position) - held.begin());
      if (shard.count < 3) continue;
      const RowRange part{shard.count / 3, shard.count - 1};
      const PositionMap slice = shard.slice(part);
      ASSERT_EQ(positions(slice), std::vector(held.begin() + part.begin, held.begin() + part.end));
      for (std::int64_t position = -1; position <= tokens + 1; ++position)
        ASSERT_EQ(slice.rows_below(position),
                  std::clamp<std::int64_t>(shard.rows_below(position) - part.begin, 0, part.size()));
    }
    for (int first = 0; first < ranks; ++first) {
      for (int last = first + 1; last <= ranks; ++last) {
        std::vector<std::int64_t> together;
        for (std::int64_t position = 0; position < tokens; ++position) {
          const int owner = owners[static_cast<std::size_t>(position)];
          if (owner >= first && owner < last) together.push_back(position);
        }
        ASSERT_EQ(positions(layout.shards(tokens, ranks, first, last)), together);
      }
    }
  }
}

struct Mix {
  const char* name;
  std::vector<std::int64_t> lengths;
};

/// Mixes of documents in 262144 · `scale` tokens, so many times as long, and tiny ones.
std::vector<Mix> mixes(std::int64_t scale) {
  const std::int64_t tokens = 262144 * scale;
  const auto rest = [&](std::int64_t longest) {
    std::vector<std::int64_t> lengths =
        drawn_lengths(tokens - longest, 5000 * static_cast<double>(scale), 0.8, 5);
    lengths.insert(lengths.begin() + std::ssize(lengths) / 2, longest);
    return lengths;
  };
  std::vector<std::int64_t> two(96, 1024 * scale);
  two.insert(two.end(), 5, 32768 * scale);
  return {{"one of 72838", rest(72838 * scale)},
          {"one of 131072", rest(131072 * scale)},
          {"tiny ones", drawn_lengths(tokens, 600, 0.4, 1)},
          {"log-normal", drawn_lengths(tokens, 2000 * static_cast<double>(scale), 1.5, 2)},
          {"one document", {tokens}},
          {"two lengths", two}};
}

TEST(BalancedCut, PairsAreBalancedWhateverTheLengths) {
  for (const auto& [name, lengths] : mixes(1)) {
    for (const char* text : {"causal+documents", "window:4095,0+documents", "dilated:2,30000+documents",
                             "dilated:500,7+documents"}) {
      const Mask mask = documents(lengths, text);
      for (const int ranks : {2, 3, 4, 8, 64}) {
        const Layout layout = Layout::parse("balanced").for_mask(mask, ranks);
        EXPECT_LE(imbalance(mask, layout, ranks), 1.02) << name << ' ' << text << ' ' << ranks;
      }
    }
  }
}

// The cut's own pairs, which are those of the shards (EveryPositionHasOneOwnerAndShardsAreEqual).
TEST(BalancedCut, PairsAreBalancedOnAThousandRanks) {
  constexpr int ranks = 1024;
  for (const auto& [name, lengths] : mixes(64)) {
    for (const char* text : {"causal+documents", "window:4095,0+documents"}) {
      const Layout layout = Layout::parse("balanced").for_mask(documents(lengths, text), ranks, 8);
      const std::span<const std::int64_t> pairs = layout.cut_pairs();
      const auto sum = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0}));
      EXPECT_LE(static_cast<double>(std::ranges::max(pairs)) * ranks / sum, 1.02) << name << ' ' << text;
    }
  }
}

// More ranks than documents or tokens, documents of one token, lengths that nothing divides.
TEST(BalancedCut, OddSequences) {
  const struct {
    std::vector<std::int64_t> lengths;
    std::vector<int> ranks;
  } cases[] = {{{1}, {1, 2, 7}},
               {{97}, {2, 7, 64}},
               {{50, 47}, {3, 7, 101}},
               {std::vector<std::int64_t>(37, 1), {2, 5, 36, 40}},
               {{13, 1, 101, 7, 1, 1}, {4, 6, 11}}};
  for (const auto& [lengths, all_ranks] : cases) {
    const Mask mask = documents(lengths);
    const std::int64_t tokens = mask.tokens();
    for (const int ranks : all_ranks) {
      SCOPED_TRACE(std::to_string(lengths.size()) + " documents on " + std::to_string(ranks));
      const Layout layout = Layout::parse("balanced").for_mask(mask, ranks, 2);
      std::vector<int> owners(static_cast<std::size_t>(tokens));
      std::int64_t pairs = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const PositionMap shard = layout.shard(tokens, ranks, rank);
        EXPECT_EQ(shard.count, tokens / ranks + (rank < tokens % ranks));
        for (const std::int64_t position : positions(shard)) ++owners.at(static_cast<std::size_t>(position));
        EXPECT_EQ(layout.cut_pairs()[static_cast<std::size_t>(rank)], pairs_of(mask, shard));
        pairs += pairs_of(mask, shard);
      }
      EXPECT_THAT(owners, testing::Each(1));
      EXPECT_EQ(pairs, pairs_of(mask, Layout().shard(tokens, 1, 0)));
      // A window that is longer than all documents leaves out nothing.
      EXPECT_EQ(layout,
                Layout::parse("balanced").for_mask(documents(lengths, "window:200,0+documents"), ranks, 2));
    }
  }
}

/// Documents of which several ranks have rows.
std::int64_t shared_documents(const Layout& layout, const std::vector<std::int64_t>& lengths, int ranks) {
  const std::vector<std::int64_t> starts = starts_of(lengths);
  std::int64_t shared = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    int holders = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const PositionMap shard = layout.shard(starts.back(), ranks, rank);
      holders += shard.rows_below(starts[d]) < shard.rows_below(starts[d + 1]);
    }
    shared += holders > 1;
  }
  return shared;
}

TEST(BalancedCut, ShortDocumentsStayWhole) {
  const auto lengths = drawn_lengths(262144, 600, 0.4, 1);
  for (const int ranks : {2, 4, 16}) {
    const Layout layout = Layout::parse("balanced").for_mask(documents(lengths), ranks);
    EXPECT_LE(shared_documents(layout, lengths, ranks), 2 * (ranks - 1)) << ranks;
  }
}

// What reservations count on: a rank has runs where documents begin or were cut, and two ranks share two
// documents at most.
TEST(BalancedCut, HasNoMoreRunsAndSharedDocumentsThanItClaims) {
  std::mt19937 random(11);
  std::int64_t most_shared = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 2 + trial % 15;
    std::vector<std::int64_t> lengths =
        drawn_lengths(1 + static_cast<std::int64_t>(random() % 3000), 1 << trial % 8, trial % 3, random());
    if (trial % 5 == 0) lengths.push_back(500);  // with more pairs than a rank has
    const char* text = trial % 4 == 0 ? "window:20,0+documents" : "causal+documents";
    const Mask mask = documents(lengths, text);
    const Layout layout = Layout::parse("balanced").for_mask(mask, ranks, trial % 4);
    const std::int64_t runs = std::ssize(layout.runs());
    EXPECT_LE(runs, BalancedCut::most_runs(mask.tokens(), ranks));
    EXPECT_LE(runs, std::ssize(lengths) + 4 * (ranks - 1) + ranks);
    const std::vector<std::int64_t> starts = starts_of(lengths);
    std::vector<PositionMap> shards;
    for (int rank = 0; rank < ranks; ++rank) shards.push_back(layout.shard(starts.back(), ranks, rank));
    for (int a = 0; a < ranks; ++a)
      for (int b = a + 1; b < ranks; ++b) {
        std::int64_t shared = 0;
        for (std::size_t d = 0; d < lengths.size(); ++d) {
          const auto has_rows = [&](int rank) {
            const PositionMap& shard = shards[static_cast<std::size_t>(rank)];
            return shard.rows_below(starts[d]) < shard.rows_below(starts[d + 1]);
          };
          shared += has_rows(a) && has_rows(b);
        }
        EXPECT_LE(shared, BalancedCut::most_shared_documents) << ranks << " ranks, trial " << trial;
        most_shared = std::max(most_shared, shared);
      }
  }
  EXPECT_EQ(most_shared, BalancedCut::most_shared_documents);
  const std::vector<std::int64_t> pairs{1, 2, 1, 2, 1, 2};  // a rank has the ones, the other the longer rest
  EXPECT_GT(std::ssize(Layout::parse("balanced").for_mask(documents(pairs), 2).runs()), 6);
}

// So that none of them sends its rows to all others while it needs few of theirs.
TEST(BalancedCut, RanksShareRowsAndWorkOfLongDocumentsInTheSameProportion) {
  constexpr std::int64_t longest = 69732, tokens = 1048576;
  std::vector<std::int64_t> lengths = drawn_lengths(tokens - longest, 700, 1, 9);
  lengths.insert(lengths.begin() + 100, longest);
  const std::vector<std::int64_t> starts = starts_of(lengths);
  for (const int ranks_per_node : {0, 8}) {
    const Layout layout = Layout::parse("balanced").for_mask(documents(lengths), 64, ranks_per_node);
    const PositionMap document = Layout().shard(tokens, 1, 0).slice({starts[100], starts[101]});
    const Mask mask = documents(lengths);
    const auto pairs_of_document = static_cast<double>(mask.pairs(document, document));
    int sharing = 0;
    for (int rank = 0; rank < 64; ++rank) {
      const PositionMap shard = layout.shard(tokens, 64, rank);
      const PositionMap rows = shard.slice({shard.rows_below(starts[100]), shard.rows_below(starts[101])});
      if (rows.count == 0) continue;
      ++sharing;
      const double of_rows = static_cast<double>(rows.count) / longest,
                   of_pairs = static_cast<double>(mask.pairs(rows, document)) / pairs_of_document;
      EXPECT_NEAR(of_rows, of_pairs, 0.002) << "rank " << rank;
    }
    EXPECT_GT(sharing, 20);
    EXPECT_LT(sharing, 64) << "the others need not send anything";
  }
}

/// Cuts inside of documents, and those of them that are no multiple of a tile behind the start of theirs.
std::pair<int, int> cuts_of(const Layout& layout, const std::vector<std::int64_t>& lengths, int ranks) {
  const std::vector<std::int64_t> starts = starts_of(lengths);
  std::pair<int, int> cuts;
  for (int rank = 0; rank < ranks; ++rank) {
    const PositionMap shard = layout.shard(starts.back(), ranks, rank);
    for (std::int64_t row = 0; row < shard.count; row = shard.end_of_run(row)) {
      const std::int64_t start = *(std::ranges::upper_bound(starts, shard(row)) - 1);
      cuts.first += shard(row) > start;
      cuts.second += (shard(row) - start) % BalancedCut::tile != 0;
    }
  }
  return cuts;
}

// Each halving of the ranks cuts two documents at most, a long one twice. What one half gets has a given
// number of rows: one of the cuts is at a tile, and the other one, too, where documents and shards are made
// of tiles. Sequences are so long that a tile is less than the tolerance.
TEST(BalancedCut, DocumentsAreCutAtTilesFromTheirStart) {
  const std::int64_t tokens = 1 << 20;
  for (const unsigned seed : {1, 2, 3, 4, 5}) {
    const std::vector<std::int64_t> lengths = drawn_lengths(tokens, 9000, 1.0, seed);
    std::vector<std::int64_t> of_tiles = lengths;
    std::ranges::for_each(of_tiles, [](std::int64_t& length) { length = (length + 127) / 128 * 128; });
    const std::int64_t sum = std::accumulate(of_tiles.begin(), of_tiles.end(), std::int64_t{0});
    of_tiles.push_back(512 - sum % 512);  // tiles on each of 4 ranks
    for (const int ranks : {2, 4}) {
      const auto [cuts, off] =
          cuts_of(Layout::parse("balanced").for_mask(documents(lengths), ranks), lengths, ranks);
      EXPECT_GT(cuts, 0) << seed << ' ' << ranks;
      EXPECT_LE(cuts, 4 * (ranks - 1)) << seed << ' ' << ranks;
      EXPECT_LE(off, ranks - 1) << seed << ' ' << ranks;
      const auto of_whole_tiles =
          cuts_of(Layout::parse("balanced").for_mask(documents(of_tiles), ranks), of_tiles, ranks);
      EXPECT_GT(of_whole_tiles.first, 0);
      EXPECT_EQ(of_whole_tiles.second, 0) << seed << ' ' << ranks;
    }
  }
}

TEST(BalancedCut, OneCausalDocumentIsAZigzag) {
  const Mask mask = Mask::parse("causal", 8192);
  const Layout balanced = Layout::parse("balanced").for_mask(mask, 4), zigzag = Layout::parse("zigzag");
  for (int rank = 0; rank < 4; ++rank) {
    const PositionMap shard = balanced.shard(8192, 4, rank);
    EXPECT_TRUE(std::ranges::any_of(std::array{0, 1, 2, 3}, [&](int of) {
      return shard == zigzag.shard(8192, 4, of);
    })) << rank;
  }
}

// Nodes are halved apart first, so that a document is shared inside of one where that will do.
TEST(BalancedCut, NodesShareFewDocuments) {
  const std::vector<std::int64_t> lengths(8, 8192);
  const Layout layout = Layout::parse("balanced").for_mask(documents(lengths), 4, 2);
  const std::vector<std::int64_t> starts = starts_of(lengths);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    const PositionMap first_node = layout.shards(starts.back(), 4, 0, 2);
    const std::int64_t rows = first_node.rows_below(starts[d + 1]) - first_node.rows_below(starts[d]);
    EXPECT_TRUE(rows == 0 || rows == 8192) << d;
  }
}

TEST(BalancedCut, EqualityIsThatOfPositions) {
  const Mask mask = documents({100, 300, 20, 500});
  const Layout a = Layout::parse("balanced").for_mask(mask, 3),
               b = Layout::parse("balanced").for_mask(mask, 3);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.for_mask(mask, 3), a);
  EXPECT_EQ(a.shard(920, 3, 1), b.shard(920, 3, 1));
  EXPECT_NE(a.shard(920, 3, 1), a.shard(920, 3, 2));
  EXPECT_NE(a, a.for_mask(documents({100, 320, 500}), 3));
  EXPECT_NE(a, Layout::parse("balanced"));
}

TEST(BalancedCut, IsMadeAnewForAnotherMask) {
  const std::vector<std::int64_t> lengths = {100, 300, 20, 500};
  const Layout window = Layout::parse("balanced").for_mask(documents(lengths, "window:40,0+documents"), 3);
  const Mask dilated = documents(lengths, "dilated:5,10+documents");  // reaches as far
  EXPECT_EQ(window.for_mask(dilated, 3), Layout::parse("balanced").for_mask(dilated, 3));
  EXPECT_LT(window.for_mask(dilated, 3).cut_pairs()[0], window.cut_pairs()[0]);
}

TEST(BalancedCut, RefusesWhatItCannotCutAndShardsOfAnotherSequence) {
  const Layout uncut = Layout::parse("balanced");
  EXPECT_FALSE(uncut.has_shards());
  EXPECT_THAT(error_text([&] { (void)uncut.shard(100, 2, 0); }), testing::HasSubstr("for_mask"));
  const Layout cut = uncut.for_mask(Mask::parse("causal", 100), 2);
  EXPECT_TRUE(cut.has_shards());
  EXPECT_THAT(error_text([&] { (void)cut.shard(101, 2, 0); }), testing::HasSubstr("101"));
  EXPECT_THAT(error_text([&] { (void)cut.shard(100, 3, 0); }), testing::HasSubstr("3 ranks"));
}

}  // namespace
}  // namespace annulus
