#include "training/data/best_fit/best_fit.hpp"

#include <map>
#include <random>

#include <annulus/attention/sequence/layout.hpp>

#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::RandomStream;
using test::TemporaryFolder;

TEST(BestFit, FillsTheSequenceWithTheLeastRoom) {
  // Lengths 4, 7, 3, 2, 5, 25: 25 is 10 + 10 + 5.
  const BestFit fitted(std::vector<std::int64_t>{0, 4, 11, 14, 16, 21}, 46, 10);
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> found;
  for (std::int64_t i = 0; i < fitted.sequences(); ++i) {
    found.emplace_back();
    for (const auto& [begin, length] : fitted.pieces(i)) found.back().emplace_back(begin, length);
  }
  // 10 | 10 | 7 + 3 | 5 + 5 | 4 + 2, in the order of their first documents.
  const decltype(found) expected = {
      {{0, 4}, {14, 2}}, {{4, 7}, {11, 3}}, {{16, 5}, {41, 5}}, {{21, 10}}, {{31, 10}}};
  EXPECT_EQ(found, expected);
}

TEST(BestFit, CutsNoDocumentThatFits) {
  std::mt19937_64 random(3);
  for (const std::int64_t length : {1, 7, 64}) {
    std::vector<std::int64_t> starts{0};
    for (int i = 0; i < 2000; ++i)
      starts.push_back(starts.back() + 1 + static_cast<std::int64_t>(random() % 90));
    const std::int64_t tokens = starts.back();
    starts.pop_back();
    const BestFit fitted(starts, tokens, length);
    std::map<std::int64_t, std::int64_t> pieces;  // length by begin
    for (std::int64_t i = 0; i < fitted.sequences(); ++i) {
      std::int64_t sum = 0;
      for (const auto& [begin, of] : fitted.pieces(i)) {
        EXPECT_TRUE(pieces.emplace(begin, of).second);
        sum += of;
      }
      EXPECT_LE(sum, length);
      EXPECT_GT(sum, 0);
    }
    std::int64_t at = 0;  // together they are the shard
    for (const auto& [begin, of] : pieces) {
      EXPECT_EQ(begin, at);
      at += of;
    }
    EXPECT_EQ(at, tokens);
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::int64_t document = (i + 1 < starts.size() ? starts[i + 1] : tokens) - starts[i];
      EXPECT_EQ(pieces.at(starts[i]), std::min(document, length));
    }
    // Little is lost: the last sequence alone may be half empty.
    if (length == 64) {
      EXPECT_LT(double(fitted.sequences() * length), 1.02 * double(tokens));
    }
  }
}

class FittedTest : public testing::Test {
 protected:
  FittedTest()
      : stream_(RandomStream::write<std::uint16_t>(folder_.path(), {300, 45, 260}, 1000, 9, 5, true)) {}
  TokenDataset fitted(std::int64_t length) const {
    return TokenDataset(read_headers(stream_.files), length, Filling::best_fit);
  }

  TemporaryFolder folder_;
  RandomStream stream_;
};

// Every token is in one sequence, with the token behind it in its document as the target, if that counts.
TEST_F(FittedTest, ReadsEveryTokenOnceWithItsTarget) {
  for (const std::int64_t length : {8, 20, 400}) {
    const TokenDataset data = fitted(length);
    std::multimap<std::vector<std::int32_t>, std::vector<std::int32_t>> found, expected;
    std::int64_t gaps = 0;
    for (std::int64_t i = 0; i < data.sequences(); ++i) {
      const Sequence sequence = data.read(i, Layout().shard(length, 1, 0));
      std::vector<std::int64_t> starts = sequence.document_starts;
      ASSERT_EQ(starts.front(), 0);
      if (sequence.gap > 0) {
        EXPECT_EQ(starts.back(), length - sequence.gap);
        for (std::int64_t at = starts.back(); at < length; ++at) {
          EXPECT_EQ(sequence.tokens[static_cast<std::size_t>(at)], 0) << "the end of a document";
          EXPECT_EQ(sequence.targets[static_cast<std::size_t>(at)], ignored_target);
        }
      } else {
        starts.push_back(length);
      }
      gaps += sequence.gap;
      for (std::size_t d = 0; d + 1 < starts.size(); ++d)
        found.emplace(
            std::vector(sequence.tokens.begin() + starts[d], sequence.tokens.begin() + starts[d + 1]),
            std::vector(sequence.targets.begin() + starts[d], sequence.targets.begin() + starts[d + 1]));
    }
    EXPECT_EQ(gaps, data.gaps());
    const std::vector<std::int32_t>& tokens = stream_.tokens;
    for (std::size_t begin = 0, end; begin < tokens.size(); begin = end) {
      for (end = begin + 1; end < tokens.size() && !stream_.starts[end]; ++end) continue;
      for (std::size_t at = begin; at < end; at += static_cast<std::size_t>(length)) {
        const std::size_t to = std::min(end, at + static_cast<std::size_t>(length));
        std::vector<std::int32_t> ids, targets;
        for (std::size_t i = at; i < to; ++i) {
          ids.push_back(tokens[i]);
          targets.push_back(i + 1 < end && stream_.counts[i + 1] ? tokens[i + 1] : ignored_target);
        }
        expected.emplace(ids, targets);
      }
    }
    EXPECT_EQ(found, expected) << length;
  }
}

TEST_F(FittedTest, RanksReadTheirRows) {
  constexpr std::int64_t length = 40;
  const TokenDataset data = fitted(length);
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:4"})
    for (std::int64_t i = 0; i < data.sequences(); ++i) {
      const Sequence whole = data.read(i, Layout().shard(length, 1, 0));
      for (int rank = 0; rank < 3; ++rank) {
        const PositionMap rows = Layout::parse(layout).shard(length, 3, rank);
        const Sequence part = data.read(i, rows);
        EXPECT_EQ(part.document_starts, whole.document_starts);
        EXPECT_EQ(part.gap, whole.gap);
        for (std::int64_t row = 0; row < rows.count; ++row) {
          const auto at = static_cast<std::size_t>(rows(row)), of = static_cast<std::size_t>(row);
          EXPECT_EQ(part.tokens[of], whole.tokens[at]);
          EXPECT_EQ(part.targets[of], whole.targets[at]);
        }
      }
    }
}

TEST_F(FittedTest, LaterShardsChangeNothingBeforeThem) {
  const TokenDataset all = fitted(20);
  const std::vector<std::filesystem::path> front(stream_.files.begin(), stream_.files.begin() + 2);
  const TokenDataset first(read_headers(front), 20, Filling::best_fit);
  EXPECT_EQ(all.sequences(2), first.sequences());
  const PositionMap rows = Layout().shard(20, 1, 0);
  for (std::int64_t i = 0; i < first.sequences(); ++i)
    test::expect_equal(all.read(i, rows), first.read(i, rows));
}

}  // namespace
}  // namespace annulus::data
