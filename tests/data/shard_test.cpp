#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/data/shard.hpp>
#include <annulus/data/verify.hpp>
#include <annulus/io/atomic.hpp>

#include "data/shards.hpp"
#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data {
namespace {

using annulus::test::error_text;
using annulus::test::TemporaryFolder;
using test::RawShard;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string open_error(const std::string& path) {
  return error_text([&] { TokenShard::open(path); });
}
std::string verify_error(const std::string& path) {
  return error_text([&] { verify_shard(TokenShard::open(path)); });
}

TEST(Shard, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> tokens{'a', 'b', 256, 'c', 256};
  const std::vector<std::int64_t> documents{0, 3};
  const ShardHeader written = write_shard(folder.file("a.h5"), *make_byte_tokenizer(), tokens, documents);
  const TokenShard shard = TokenShard::open(folder.file("a.h5"));
  EXPECT_EQ(shard.header().tokens, 5);
  EXPECT_EQ(shard.header().documents, 2);
  EXPECT_EQ(shard.header().type, DType::u16);
  EXPECT_EQ(shard.header().checksum, written.checksum);
  EXPECT_EQ(shard.header().tokenizer, make_byte_tokenizer()->identity());
  EXPECT_THAT(shard.header().creator, HasSubstr("annulus"));
  std::vector<std::int32_t> read(5);
  shard.read(0, read);
  EXPECT_EQ(read, tokens);
  EXPECT_EQ(shard.documents(), documents);
  EXPECT_EQ(shard.tokenizer()->decode(read), "abc");
  verify_shard(shard);
}

TEST(Shard, WriterRefusesWhatReadersWould) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const auto write = [&](std::vector<std::int32_t> tokens, std::vector<std::int64_t> documents) {
    return error_text([&] { write_shard(folder.file("a.h5"), *tokenizer, tokens, documents); });
  };
  EXPECT_THAT(write({}, {}), HasSubstr("at least one"));
  EXPECT_THAT(write({1}, {}), HasSubstr("at least one"));
  EXPECT_THAT(write({1, 257}, {0}), HasSubstr("token 1 has id 257"));
  EXPECT_THAT(write({-1}, {0}), HasSubstr("token 0 has id -1"));
  EXPECT_THAT(write({1, 2}, {1}), HasSubstr("document 0 starts at 1"));
  EXPECT_THAT(write({1, 2}, {0, 2}), HasSubstr("document 1 starts at 2"));
  EXPECT_THAT(write({1, 2}, {0, 0}), HasSubstr("document 1 starts at 0"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.h5")));
}

template <class T>
class ShardTypes : public testing::Test {};
using Types = testing::Types<std::uint8_t, std::uint16_t, std::uint32_t>;
TYPED_TEST_SUITE(ShardTypes, Types);

TYPED_TEST(ShardTypes, AreRead) {
  const TemporaryFolder folder;
  RawShard<TypeParam> shard;
  shard.tokenizer = "own";
  shard.vocabulary = 200;
  shard.end_of_document = 0;
  shard.tokens = {199, 0, 5};
  shard.documents = {0, 2};
  shard.write(folder.file("a.h5"));
  const TokenShard read = TokenShard::open(folder.file("a.h5"));
  verify_shard(read);
  std::vector<std::int32_t> ids(2);
  read.read(1, ids);
  EXPECT_THAT(ids, ElementsAre(0, 5));
  shard.tokens[1] = 200;
  shard.write(folder.file("a.h5"));
  EXPECT_THAT(verify_error(folder.file("a.h5")),
              AllOf(HasSubstr("offset 1"), HasSubstr("id 200"), HasSubstr("vocabulary 200")));
}

TEST(Shard, LargestIdsAreNotTakenForNegativeOnes) {
  const TemporaryFolder folder;
  RawShard<std::uint32_t> shard;
  shard.tokenizer = "own";
  shard.vocabulary = 100000;
  shard.tokens = {1, 0xffffffffu};
  shard.documents = {0};
  shard.write(folder.file("a.h5"));
  EXPECT_THAT(verify_error(folder.file("a.h5")), AllOf(HasSubstr("offset 1"), HasSubstr("id 4294967295")));
}

TEST(BadShard, MissingForeignAndTruncated) {
  const TemporaryFolder folder;
  EXPECT_THAT(open_error(folder.file("none.h5")), AllOf(HasSubstr("none.h5"), HasSubstr("check the path")));
  EXPECT_THAT(open_error(folder.write("text.h5", "no shard")), HasSubstr("text.h5' is not an HDF5 file"));
  io::write_hdf5_atomically(folder.file("other.h5"),
                            [](io::FileWriter& file) { file.set_attribute("version", 1); });
  EXPECT_THAT(open_error(folder.file("other.h5")),
              AllOf(HasSubstr("no token shard"), HasSubstr("annulus-tokens pack")));
  RawShard{}.write(folder.file("good.h5"));
  const std::string bytes = io::read_text(folder.file("good.h5"));
  EXPECT_THAT(open_error(folder.write("cut.h5", bytes.substr(0, bytes.size() - 100))),
              AllOf(HasSubstr("cut.h5"), HasSubstr("truncated")));
}

TEST(BadShard, HeaderFields) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  const auto with = [&](auto spoil) {
    RawShard shard;
    spoil(shard);
    shard.write(path);
    return open_error(path);
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_THAT(with([](auto& s) { s.format = "other"; }), AllOf(HasSubstr(path), HasSubstr("no token shard")));
  EXPECT_THAT(with([](auto& s) { s.format.reset(); }), HasSubstr("no token shard"));
  EXPECT_THAT(with([](auto& s) { s.version = 2; }),
              AllOf(HasSubstr(path), HasSubstr("version 2"), HasSubstr("reads version 1")));
  EXPECT_THAT(with([](auto& s) { s.vocabulary = 0; }), HasSubstr("vocabulary is 0"));
  EXPECT_THAT(with([](auto& s) { s.vocabulary = std::int64_t{1} << 31; }),
              HasSubstr("vocabulary is 2147483648"));
  EXPECT_THAT(with([](auto& s) { s.vocabulary = 300; }), HasSubstr("has a vocabulary of 257"));
  EXPECT_THAT(with([](auto& s) { s.end_of_document = 257; }), HasSubstr("end_of_document is 257"));
  EXPECT_THAT(with([](auto& s) { s.end_of_document = -1; }), HasSubstr("end_of_document is -1"));
  EXPECT_THAT(with([](auto& s) { s.checksum = -1; }), HasSubstr("checksum is -1"));
  EXPECT_THAT(with([](auto& s) { s.tokenizer = "sentencepiece"; }), HasSubstr("fingerprint"));
  EXPECT_THAT(with([](auto& s) { s.tokens.clear(); }), AllOf(HasSubstr(path), HasSubstr("empty shard")));
  EXPECT_THAT(with([](auto& s) { s.documents.clear(); }),
              AllOf(HasSubstr("empty shard"), HasSubstr("documents")));
  EXPECT_THAT(with([](auto& s) { s.documents = {0, 1, 2, 3, 4, 5}; }), HasSubstr("6 documents but 5 tokens"));
  EXPECT_THAT(with([](auto& s) {
                s.documents = {1, 3};
              }),
              AllOf(HasSubstr(path), HasSubstr("document 0 starts at offset 1")));
  EXPECT_THAT(with([](auto& s) { s.documents = {0, 3, 3}; }), HasSubstr("document 2 starts at offset 3"));
  EXPECT_THAT(with([](auto& s) { s.documents = {0, 3, 2}; }), HasSubstr("document 2 starts at offset 2"));
  EXPECT_THAT(with([](auto& s) { s.documents = {0, 5}; }), HasSubstr("document 1 starts at offset 5"));
}

TEST(BadShard, TypesAndShapes) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  const auto write = [&](auto tokens, const io::Extents& extents, auto documents) {
    io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
      file.set_attribute("format", "annulus-tokens");
      file.set_attribute("version", 1);
      file.set_attribute("tokenizer", "byte");
      file.set_attribute("vocabulary", 257);
      file.set_attribute("end_of_document", 256);
      file.set_attribute("checksum", 0);
      file.write("tokens", std::span(std::as_const(tokens)), extents);
      if (!documents.empty())
        file.write("documents", std::span(std::as_const(documents)), {documents.size()});
    });
    return open_error(path);
  };
  using U16 = std::vector<std::uint16_t>;
  using U64 = std::vector<std::uint64_t>;
  EXPECT_EQ(write(U16{1, 2}, {2}, U64{0}), "no error");
  EXPECT_THAT(write(std::vector<float>{1, 2}, {2}, U64{0}),
              AllOf(HasSubstr("tokens holds f32"), HasSubstr("u16")));
  EXPECT_THAT(write(std::vector<std::int64_t>{1, 2}, {2}, U64{0}), HasSubstr("tokens holds i64"));
  EXPECT_THAT(write(U16{1, 2}, {1, 2}, U64{0}), HasSubstr("'/tokens' has 2 dimensions, not 1"));
  EXPECT_THAT(write(U16{1, 2}, {2}, std::vector<std::int64_t>{0}),
              HasSubstr("'/documents' holds i64, not u64"));
  EXPECT_THAT(write(U16{1, 2}, {2}, U64{}), HasSubstr("no dataset '/documents'"));
}

TEST(BadShard, Contents) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  const auto with = [&](auto spoil) {
    RawShard shard;
    spoil(shard);
    shard.write(path);
    return verify_error(path);
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_THAT(
      with([](auto& s) { s.tokens[3] = 300; }),
      AllOf(HasSubstr(path), HasSubstr("offset 3"), HasSubstr("id 300"), HasSubstr("vocabulary 257")));
  EXPECT_THAT(with([](auto& s) { s.checksum = 12345; }),
              AllOf(HasSubstr("the header says 00003039"), HasSubstr("damaged")));
}

TEST(BadShard, OneFlippedBitIsFound) {
  const TemporaryFolder folder;
  RawShard{}.write(folder.file("a.h5"));
  std::string bytes = io::read_text(folder.file("a.h5"));
  const std::string stored("a\0b\0\0\1c\0", 8);
  const auto at = bytes.find(stored);
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 4;
  EXPECT_THAT(verify_error(folder.write("b.h5", bytes)), HasSubstr("checksum"));
}

TEST(Shard, FullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> tokens(100000, 1);
  const std::vector<std::int64_t> documents{0};
  const annulus::test::FileSizeLimit limit(50000);
  EXPECT_THAT(
      error_text([&] { write_shard(folder.file("a.h5"), *make_byte_tokenizer(), tokens, documents); }),
      AllOf(HasSubstr(folder.file("a.h5")), HasSubstr("File too large")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FindShards, FilesAndSortedFolders) {
  const TemporaryFolder folder;
  for (const char* name : {"c.h5", "a.h5", "b.txt"}) folder.write(name, "");
  const std::filesystem::path paths[] = {folder.file("x.h5"), folder.path()};
  EXPECT_THAT(find_shards(paths), ElementsAre(folder.file("x.h5"), folder.file("a.h5"), folder.file("c.h5")));
  std::filesystem::create_directory(folder.file("sub"));
  const std::filesystem::path empty[] = {folder.file("sub")};
  EXPECT_THAT(error_text([&] { find_shards(empty); }),
              AllOf(HasSubstr(folder.file("sub")), HasSubstr("no token shards")));
  EXPECT_THAT(error_text([&] { find_shards({}); }), HasSubstr("no token shards were given"));
}

/// People link the shards of several packs into one folder: none is left out without a word.
TEST(FindShards, LinksAreFollowedAndThoseToNothingNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("links"));
  RawShard{}.write(folder.file("a.h5"));
  std::filesystem::create_symlink(folder.file("a.h5"), folder.file("links/b.h5"));
  std::filesystem::create_symlink(folder.file("gone.h5"), folder.file("links/c.h5"));
  const std::filesystem::path paths[] = {folder.file("links")};
  const auto found = find_shards(paths);
  EXPECT_THAT(found, ElementsAre(folder.file("links/b.h5"), folder.file("links/c.h5")));
  EXPECT_EQ(TokenShard::open(found[0]).header().tokens, 5);
  EXPECT_THAT(open_error(found[1]), AllOf(HasSubstr("links/c.h5'"), HasSubstr("No such file")));
}

TEST(TokenHistogram, Entropy) {
  TokenHistogram histogram;
  EXPECT_EQ(histogram.entropy(), 0);
  histogram.add(std::vector<std::int32_t>{3, 3, 3, 3});
  EXPECT_EQ(histogram.entropy(), 0);
  histogram.add(std::vector<std::int32_t>{0, 1, 2, 5});
  EXPECT_NEAR(histogram.entropy(), 0.5 * std::log(2) + 0.5 * std::log(8), 1e-12);
  EXPECT_EQ(histogram.total(), 8);
  for (const auto& [id, count] : {std::pair{0, 1}, {1, 1}, {2, 1}, {3, 4}, {4, 0}, {5, 1}, {6, 0}})
    EXPECT_EQ(histogram.count(id), count) << id;
  histogram.add(std::vector<std::int32_t>(8, 2147483646));  // no table reaches so far
  EXPECT_EQ(histogram.count(2147483646), 8);
  EXPECT_NEAR(histogram.entropy(), 0.5 * std::log(2) + 0.5 * (0.5 * std::log(4) + 0.5 * std::log(16)), 1e-12);
}

TEST(TokenShard, StartsOfDocumentsAreReadForARange) {
  const annulus::test::TemporaryFolder folder;
  test::RawShard shard;  // of more documents than are read at once, of 1 to 7 tokens
  shard.documents = {0};
  while (shard.documents.size() < 10000)
    shard.documents.push_back(shard.documents.back() + 1 + shard.documents.size() % 7);
  shard.tokens.assign(shard.documents.back() + 3, 256);
  shard.write(folder.file("a.h5"));
  const TokenShard read = TokenShard::open(folder.file("a.h5"));
  const std::vector<std::int64_t> all(shard.documents.begin(), shard.documents.end());
  EXPECT_EQ(read.documents(), all);
  const std::int64_t size = std::ssize(shard.tokens);
  const std::int64_t first = all[4096], second = all[8192];
  for (const std::int64_t begin : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{1}, first - 1, first,
                                   first + 1, second, size - 1, size + 9})
    for (const std::int64_t end :
         {begin - 1, begin, begin + 1, first, first + 1, second, second + 1, size, size + 9}) {
      const auto from = std::ranges::lower_bound(all, begin);
      const auto to = std::ranges::lower_bound(all, std::max(begin, end));
      EXPECT_EQ(read.documents(begin, end), std::vector(from, to)) << begin << " " << end;
    }
}

}  // namespace
}  // namespace annulus::data
