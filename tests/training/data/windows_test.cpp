#include "training/data/windows.hpp"

#include <annulus/attention/sequence/layout.hpp>

#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::RandomStream;
using test::TemporaryFolder;

// Each token of the stream but those that start documents, from the window that shows most of what comes
// before it without being a window further on.
TEST(Windows, HaveEveryTokenOnceAsATarget) {
  const TemporaryFolder folder;
  const RandomStream stream =
      RandomStream::write<std::uint16_t>(folder.path(), {50, 3, 120, 33}, 1000, 40, 1);
  const auto all = std::ssize(stream.tokens);
  for (const std::int64_t length : {1, 7, 64, 205})
    for (const std::int64_t stride : {std::int64_t{1}, length / 2 + 1, length}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, stride " << stride);
      const TokenDataset dataset(stream.files, length);
      const Windows windows(dataset, stride);
      const PositionMap rows = Layout::parse("zigzag").shard(length, 1, 0);
      std::vector<int> scored(stream.tokens.size());
      for (std::int64_t index = 0; index < windows.count(); ++index) {
        const Sequence window = windows.read(index, rows);
        const std::int64_t begin = std::min(index * stride, all - 1 - length);
        EXPECT_EQ(window.index, index);
        EXPECT_EQ(window.document_starts, dataset.read_from(begin, rows).document_starts);
        for (std::int64_t row = 0; row < length; ++row) {
          const auto place = std::size_t(begin + row);
          EXPECT_EQ(window.tokens[std::size_t(row)], stream.tokens[place]);
          const std::int32_t target = window.targets[std::size_t(row)];
          if (target == ignored_target) continue;
          EXPECT_EQ(target, stream.tokens[place + 1]);
          EXPECT_GE(row + 1, index == 0 ? 1 : length - stride + 1);
          ++scored[place + 1];
        }
      }
      for (std::size_t i = 0; i < scored.size(); ++i)
        EXPECT_EQ(scored[i], i == 0 || stream.starts[i] ? 0 : 1) << i;
    }
}

TEST(Windows, OfRanksAreRowsOfTheWhole) {
  const TemporaryFolder folder;
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder.path(), {90, 41}, 1000, 40, 2);
  const TokenDataset dataset(stream.files, 50);
  const Windows windows(dataset, 20);
  EXPECT_EQ(windows.count(), 5);
  const PositionMap whole = Layout().shard(50, 1, 0);
  for (std::int64_t index = 0; index < windows.count(); ++index) {
    const Sequence all = windows.read(index, whole);
    for (int rank = 0; rank < 3; ++rank) {
      const PositionMap rows = Layout::parse("striped").shard(50, 3, rank);
      const Sequence part = windows.read(index, rows);
      for (std::int64_t row = 0; row < rows.count; ++row)
        EXPECT_EQ(part.targets[std::size_t(row)], all.targets[std::size_t(rows(row))]);
    }
  }
}

TEST(Windows, WithoutAStrideAreTheSequences) {
  const TemporaryFolder folder;
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder.path(), {131}, 1000, 40, 3);
  const TokenDataset dataset(stream.files, 50);
  const Windows windows(dataset, 0);
  const PositionMap rows = Layout().shard(50, 1, 0);
  ASSERT_EQ(windows.count(), dataset.sequences());
  for (std::int64_t index = 0; index < windows.count(); ++index)
    test::expect_equal(windows.read(index, rows), dataset.read(index, rows));
}

TEST(Windows, NameAStrideThatLeavesTokensOut) {
  const TemporaryFolder folder;
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder.path(), {131}, 1000, 40, 4);
  const TokenDataset dataset(stream.files, 50);
  for (const std::int64_t stride : {-1, 51})
    EXPECT_THAT(error_text([&] { Windows(dataset, stride); }), mentions(std::to_string(stride), "50"));
  EXPECT_THAT(error_text([&] { dataset.read_from(81, Layout().shard(50, 1, 0)); }), mentions("81", "131"));
}

}  // namespace
}  // namespace annulus::data
