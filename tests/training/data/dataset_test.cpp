#include <annulus/attention/sequence/layout.hpp>

#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::expect_equal;
using test::RandomStream;
using test::RawShard;
using test::TemporaryFolder;
using testing::ElementsAre;

/// What TokenDataset::read gives, token by token from memory.
Sequence brute_force(const RandomStream& stream, std::int64_t length, std::int64_t index,
                     const PositionMap& rows) {
  Sequence sequence;
  sequence.index = index;
  const auto at = [&](std::int64_t position) { return static_cast<std::size_t>(index * length + position); };
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t position = rows(i);
    sequence.tokens.push_back(stream.tokens[at(position)]);
    const bool counts = !stream.starts[at(position + 1)] && stream.counts[at(position + 1)];
    sequence.targets.push_back(counts ? stream.tokens[at(position + 1)] : ignored_target);
  }
  for (std::int64_t position = 0; position < length; ++position) {
    if (position == 0 || stream.starts[at(position)]) sequence.document_starts.push_back(position);
  }
  return sequence;
}

/// Every sequence, on every rank of every number of ranks.
void check_all(const RandomStream& stream, std::int64_t length, const Layout& layout,
               const std::vector<int>& worlds) {
  const TokenDataset dataset(stream.files, length);
  ASSERT_EQ(dataset.tokens(), std::ssize(stream.tokens));
  ASSERT_EQ(dataset.sequences(), (dataset.tokens() - 1) / length);
  for (const int ranks : worlds) {
    for (int rank = 0; rank < ranks; ++rank) {
      const PositionMap rows = layout.shard(length, ranks, rank);
      for (std::int64_t index = 0; index < dataset.sequences(); ++index) {
        SCOPED_TRACE(testing::Message() << layout.to_string() << ", " << length << " tokens, rank " << rank
                                        << " of " << ranks << ", sequence " << index);
        expect_equal(dataset.read(index, rows), brute_force(stream, length, index, rows));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

class DatasetLayouts : public testing::TestWithParam<const char*> {};

TEST_P(DatasetLayouts, EqualBruteForce) {
  for (const bool masked : {false, true}) {
    const TemporaryFolder folder;
    const RandomStream stream =
        RandomStream::write<std::uint16_t>(folder.path(), {50, 1, 2, 120, 33, 7}, 1000, 9, 1, masked);
    for (const std::int64_t length : {1, 2, 7, 16, 33, 71, 106, 212})
      check_all(stream, length, Layout::parse(GetParam()), {1, 2, 3, 4, 5, 8});
  }
}

TEST_P(DatasetLayouts, LongSequencesOverManyFiles) {
  const TemporaryFolder folder;
  const RandomStream stream =
      RandomStream::write<std::uint8_t>(folder.path(), {40000, 3, 25000, 60001}, 256, 700, 2);
  check_all(stream, 50001, Layout::parse(GetParam()), {1, 3, 4});
}

INSTANTIATE_TEST_SUITE_P(Layouts, DatasetLayouts,
                         testing::Values("contiguous", "zigzag", "striped", "block-striped:3",
                                         "block-striped:64"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (c == '-' || c == ':') c = '_';
                           }
                           return name;
                         });

using DatasetReading = annulus::test::FolderTest;

TEST_F(DatasetReading, StripesFarApart) {
  // 4-byte ids, stripes of 512 tokens on 4 ranks: 8 KiB from stripe to stripe.
  const RandomStream stream =
      RandomStream::write<std::uint32_t>(folder_.path(), {30000, 21000, 9000}, 100000, 900, 3);
  check_all(stream, 29999, Layout::parse("block-striped:512"), {2, 4});
}

TEST_F(DatasetReading, ManyStripes) {
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder_.path(), {600001}, 60000, 10000, 4);
  check_all(stream, 600000, Layout::parse("striped"), {2});
}

TEST_F(DatasetReading, AnyPositionMap) {
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder_.path(), {60, 45, 100}, 1000, 6, 5);
  const TokenDataset dataset(stream.files, 100);
  const PositionMap maps[] = {
      {3, 20, 2, 5, 0, 23},  // rows of a block are two apart
      {3, 20, 2, 5, 7, 12},  // a slice of it
      {0, 0, 1, 100, 0, 100}, {99, 0, 1, 1, 0, 1}, {5, 10, 1, 4, 2, 30}, {0, 0, 1, 1, 0, 0},
  };
  for (const PositionMap& rows : maps) {
    for (const std::int64_t index : {0, 1}) {
      expect_equal(dataset.read(index, rows), brute_force(stream, 100, index, rows));
    }
  }
}

TEST_F(DatasetReading, TargetsAcrossTheEndOfASequenceAndOfAFile) {
  RawShard<> first, second;
  first.tokens = {1, 2, 3, 4};
  first.documents = {0};
  second.tokens = {5, 6, 7};
  second.documents = {0, 2};
  first.write(folder_.file("a.h5"));
  second.write(folder_.file("b.h5"));
  const TokenDataset dataset = test::dataset_of(folder_, 2);
  const PositionMap all{0, 0, 1, 2, 0, 2};
  EXPECT_THAT(dataset.read(0, all).targets, ElementsAre(2, 3));   // over the end of the sequence
  EXPECT_THAT(dataset.read(1, all).targets, ElementsAre(4, -1));  // the next file starts a document
  EXPECT_THAT(dataset.read(2, all).targets, ElementsAre(6, -1));  // so does token 7
  EXPECT_THAT(dataset.read(2, all).document_starts, ElementsAre(0));
}

TEST_F(DatasetReading, DescribesItself) {
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder_.path(), {60, 45}, 1000, 6, 5);
  const TokenDataset dataset(stream.files, 10), same(stream.files, 20);
  EXPECT_EQ(dataset.tokens(), 105);
  EXPECT_EQ(dataset.sequences(), 10);
  EXPECT_EQ(dataset.sequence_tokens(), 10);
  EXPECT_EQ(dataset.vocabulary(), 1000);
  EXPECT_EQ(dataset.documents(), std::count(stream.starts.begin(), stream.starts.end(), true));
  EXPECT_EQ(dataset.shards().size(), 2u);
  EXPECT_EQ(dataset.fingerprint(), same.fingerprint());
  const std::filesystem::path reversed[] = {stream.files[1], stream.files[0]};
  EXPECT_NE(TokenDataset(reversed, 10).fingerprint(), dataset.fingerprint());
  std::set<std::uint32_t> fingerprints;  // with all tokens counted by none, by a mask, and by another one
  for (const std::vector<std::uint8_t>& mask :
       {std::vector<std::uint8_t>{}, {1, 1, 1, 1, 1}, {1, 0, 1, 1, 1}}) {
    RawShard shard;
    shard.loss_mask = mask;
    shard.write(folder_.file("masked.h5"));
    const std::filesystem::path path = folder_.file("masked.h5");
    const std::vector<ShardHeader> headers = read_headers(std::span(&path, 1));
    fingerprints.insert(TokenDataset(headers, 4).fingerprint());
    EXPECT_EQ(TokenDataset(headers_from_bytes(to_bytes(headers)), 4).fingerprint(),
              TokenDataset(headers, 4).fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), 3u);
}

TEST_F(DatasetReading, MoreFilesThanAreKeptOpen) {
  const std::vector<std::int64_t> sizes(25, 11);
  check_all(RandomStream::write<std::uint16_t>(folder_.path(), sizes, 500, 5, 6), 10, Layout(), {1});
  check_all(RandomStream::write<std::uint16_t>(folder_.path(), sizes, 500, 5, 7), 200, Layout(), {2});
}

std::string dataset_error(const TemporaryFolder& folder, std::int64_t sequence_tokens) {
  return error_text([&] { test::dataset_of(folder, sequence_tokens); });
}

using DatasetErrors = annulus::test::FolderTest;

TEST_F(DatasetErrors, SequenceLongerThanTheData) {
  RawShard{}.write(folder_.file("a.h5"));
  EXPECT_EQ(test::dataset_of(folder_, 4).sequences(), 1);
  EXPECT_THAT(dataset_error(folder_, 5), mentions("5 tokens", folder_.file("a.h5")));
  EXPECT_THAT(dataset_error(folder_, 0), mentions("0"));
}

TEST_F(DatasetErrors, FilesThatDisagree) {
  RawShard{}.write(folder_.file("a.h5"));
  RawShard other;
  other.tokenizer = "own";
  other.vocabulary = 300;
  other.write(folder_.file("b.h5"));
  EXPECT_THAT(dataset_error(folder_, 2), mentions("a.h5", "b.h5", "257", "300"));
}

TEST_F(DatasetErrors, EveryHeaderIsCheckedWhenOpening) {
  RawShard{}.write(folder_.file("a.h5"));
  folder_.write("b.h5", "junk");
  EXPECT_THAT(dataset_error(folder_, 2), mentions("b.h5'"));
  const std::filesystem::path missing[] = {folder_.file("c.h5")};
  EXPECT_THAT(error_text([&] { TokenDataset(missing, 2); }), mentions("c.h5"));
}

TEST_F(DatasetErrors, TokenBeyondTheVocabulary) {
  RawShard<> shard;
  shard.tokens = std::vector<std::uint16_t>(101, 1);
  shard.tokens[60] = 999;
  shard.documents = {0};
  shard.write(folder_.file("a.h5"));
  const TokenDataset dataset = test::dataset_of(folder_, 50);
  for (const char* layout : {"contiguous", "striped", "block-striped:4"}) {
    int failures = 0;
    for (const int rank : {0, 1}) {
      const PositionMap rows = Layout::parse(layout).shard(50, 2, rank);
      EXPECT_EQ(error_text([&] { dataset.read(0, rows); }), "no error");
      const std::string error = error_text([&] { dataset.read(1, rows); });
      if (error == "no error") continue;
      ++failures;
      EXPECT_THAT(error, mentions(folder_.file("a.h5"), "offset 60", "id 999"));
    }
    EXPECT_GE(failures, 1) << layout;  // the rank that reads it, as token or as target
  }
}

TEST_F(DatasetErrors, FilesThatChangeUnderneath) {
  const std::vector<std::int64_t> sizes(12, 20);  // more than are kept open
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder_.path(), sizes, 500, 5, 6);
  const TokenDataset dataset(stream.files, 20);
  RandomStream::write<std::uint16_t>(folder_.path(), sizes, 500, 5, 7);
  EXPECT_THAT(error_text([&] { dataset.read(0, {0, 0, 1, 20, 0, 20}); }), mentions(folder_.path().string()));
}

TEST_F(DatasetErrors, PositionsAndSequencesOutside) {
  RawShard{}.write(folder_.file("a.h5"));
  const TokenDataset dataset = test::dataset_of(folder_, 2);
  for (const int sequence : {2, -1})
    EXPECT_THAT(error_text([&] {
                  dataset.read(sequence, {0, 0, 1, 2, 0, 2});
                }),
                mentions(fmt::format("sequence {}", sequence)));
  EXPECT_THAT(error_text([&] { dataset.read(0, {0, 0, 1, 3, 0, 3}); }), mentions("positions 0 to 2"));
}

TEST_F(DatasetReading, OfHeadersOpensShardsOnlyForTheirTokens) {
  const RandomStream stream = RandomStream::write<std::uint16_t>(folder_.path(), {50, 60, 70}, 1000, 9, 1);
  const std::vector<ShardHeader> headers = headers_from_bytes(to_bytes(read_headers(stream.files)));
  const TokenDataset whole(stream.files, 40);
  for (const ShardHeader& header : headers) std::filesystem::rename(header.path, header.path + ".away");
  const TokenDataset dataset(headers, 40);
  EXPECT_EQ(dataset.tokens(), whole.tokens());
  EXPECT_EQ(dataset.documents(), whole.documents());
  EXPECT_EQ(dataset.sequences(), whole.sequences());
  EXPECT_EQ(dataset.fingerprint(), whole.fingerprint());
  EXPECT_EQ(dataset.tokenizer(), whole.tokenizer());
  std::filesystem::rename(headers[0].path + ".away", headers[0].path);
  const PositionMap rows = Layout().shard(40, 1, 0);
  expect_equal(dataset.read(0, rows), brute_force(stream, 40, 0, rows));
  // Another shard in the place of one whose header is known.
  std::filesystem::copy(headers[0].path, headers[1].path);
  EXPECT_THAT(error_text([&] { dataset.read(2, rows); }), mentions(headers[1].path));
}

TEST_F(DatasetReading, BytesThatAreNoHeadersAreRefused) {
  for (const std::string& bytes : {std::string("no headers"), to_bytes({}) + "more"})
    EXPECT_THAT(error_text([&] { headers_from_bytes(bytes); }), mentions("headers of token shards"));
  EXPECT_THAT(error_text([] { TokenDataset(std::vector<ShardHeader>(), 7); }), mentions("token shards"));
}

}  // namespace
}  // namespace annulus::data
