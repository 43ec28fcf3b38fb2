#include <algorithm>
#include <cmath>

#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::RawShard;
using test::TemporaryFolder;
using testing::ElementsAre;

std::string open_error(const std::string& path) {
  return error_text([&] { TokenShard::open(path); });
}
std::string verify_error(const std::string& path) {
  return error_text([&] { verify_shard(TokenShard::open(path)); });
}

using Shards = annulus::test::FolderTest;

TEST_F(Shards, ReadsWhatWasWritten) {
  const std::vector<std::int32_t> tokens{'a', 'b', 256, 'c', 256};
  const std::vector<std::int64_t> documents{0, 3};
  const ShardHeader written = write_shard(folder_.file("a.h5"), *make_byte_tokenizer(), tokens, documents);
  const TokenShard shard = TokenShard::open(folder_.file("a.h5"));
  EXPECT_EQ(shard.header().tokens, 5);
  EXPECT_EQ(shard.header().documents, 2);
  EXPECT_EQ(shard.header().type, DType::u16);
  EXPECT_EQ(shard.header().checksum, written.checksum);
  EXPECT_EQ(shard.header().tokenizer, make_byte_tokenizer()->identity());
  EXPECT_THAT(shard.header().creator, mentions("annulus"));
  std::vector<std::int32_t> read(5);
  shard.read(0, read);
  EXPECT_EQ(read, tokens);
  EXPECT_EQ(shard.documents(), documents);
  EXPECT_EQ(shard.tokenizer()->decode(read), "abc");
  verify_shard(shard);
}

TEST_F(Shards, CarryALossMask) {
  const std::vector<std::int32_t> tokens{'a', 'b', 256, 'c', 256};
  const std::vector<std::int64_t> documents{0, 3};
  const std::vector<std::uint8_t> mask{0, 1, 0, 1, 1};
  const auto write = [&](const char* name, std::span<const std::uint8_t> loss_mask) {
    write_shard(folder_.file(name), *make_byte_tokenizer(), tokens, documents, loss_mask);
    return TokenShard::open(folder_.file(name));
  };
  const TokenShard plain = write("plain.h5", {}), shard = write("masked.h5", mask);
  EXPECT_FALSE(plain.header().loss_mask_checksum);
  EXPECT_EQ(shard.header().checksum, plain.header().checksum);
  EXPECT_EQ(shard.header().loss_mask_checksum, io::crc32_of(std::span(mask)));
  verify_shard(shard);
  EXPECT_EQ(shard.sum_loss_mask().counted, 3);
  std::vector<std::uint8_t> read(4);
  shard.read_loss_mask(0, 3, 2, 2, read);
  EXPECT_THAT(read, ElementsAre(0, 1, 1, 1));
}

TEST_F(Shards, WriterRefusesALossMaskThatReadersWould) {
  const std::vector<std::int32_t> tokens{1, 2, 3};
  const std::vector<std::int64_t> documents{0};
  const std::string path = folder_.file("a.h5");
  const auto error = [&](const std::vector<std::uint8_t>& mask) {
    return error_text([&] { write_shard(path, *make_byte_tokenizer(), tokens, documents, mask); });
  };
  EXPECT_THAT(error({1, 0}), mentions(path, "loss_mask", "2 values for 3"));
  EXPECT_THAT(error({1, 0, 2}), mentions(path, "loss_mask is 2 at token 2"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Shards, WriterRefusesWhatReadersWould) {
  struct Case {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> documents;
    const char* named;
  };
  const std::string path = folder_.file("a.h5");
  for (const auto& [tokens, documents, named] : {Case{{}, {}, ""},
                                                 {{1}, {}, ""},
                                                 {{1, 257}, {0}, "token 1 has id 257"},
                                                 {{-1}, {0}, "token 0 has id -1"},
                                                 {{1, 2}, {1}, "document 0 starts at 1"},
                                                 {{1, 2}, {0, 2}, "document 1 starts at 2"},
                                                 {{1, 2}, {0, 0}, "document 1 starts at 0"}})
    EXPECT_THAT(error_text([&] { write_shard(path, *make_byte_tokenizer(), tokens, documents); }),
                mentions(path, named));
  EXPECT_FALSE(std::filesystem::exists(path));
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
  EXPECT_THAT(verify_error(folder.file("a.h5")), mentions("offset 1", "id 200", "vocabulary 200"));
}

TEST_F(Shards, LargestIdsAreNotTakenForNegativeOnes) {
  RawShard<std::uint32_t> shard;
  shard.tokenizer = "own";
  shard.vocabulary = 100000;
  shard.tokens = {1, 0xffffffffu};
  shard.documents = {0};
  shard.write(folder_.file("a.h5"));
  EXPECT_THAT(verify_error(folder_.file("a.h5")), mentions("offset 1", "id 4294967295"));
}

using BadShard = annulus::test::FolderTest;

TEST_F(BadShard, MissingForeignAndTruncated) {
  RawShard{}.write(folder_.file("good.h5"));
  const std::string bytes = io::read_text(folder_.file("good.h5"));
  io::write_hdf5_atomically(folder_.file("other.h5"),
                            [](io::FileWriter& file) { file.set_attribute("version", 1); });
  for (const std::string& path :
       {folder_.file("none.h5"), folder_.write("text.h5", "no shard"), folder_.file("other.h5"),
        folder_.write("cut.h5", bytes.substr(0, bytes.size() - 100))})
    EXPECT_THAT(open_error(path), mentions(path));
}

/// A good shard in which one thing is wrong, and what the error names.
struct Spoiled {
  void (*spoil)(RawShard<>& shard);
  const char* named;
};

TEST_F(BadShard, HeaderFields) {
  const std::string path = folder_.file("a.h5");
  RawShard{}.write(path);
  EXPECT_EQ(open_error(path), "no error");
  for (const auto& [spoil, named] :
       {Spoiled{[](auto& s) { s.format = "other"; }, "format"},
        {[](auto& s) { s.format.reset(); }, "format"},
        {[](auto& s) { s.version = 2; }, "version 2"},
        {[](auto& s) { s.vocabulary = 0; }, "vocabulary is 0"},
        {[](auto& s) { s.vocabulary = std::int64_t{1} << 31; }, "vocabulary is 2147483648"},
        {[](auto& s) { s.vocabulary = 300; }, "vocabulary is 300"},
        {[](auto& s) { s.end_of_document = 257; }, "end_of_document is 257"},
        {[](auto& s) { s.end_of_document = -1; }, "end_of_document is -1"},
        {[](auto& s) { s.checksum = -1; }, "checksum is -1"},
        {[](auto& s) {
           s.loss_mask = {1, 0, 1, 1};
         },
         "loss_mask has 4 values for 5"},
        {[](auto& s) { s.loss_mask_checksum = 0; }, "without the dataset loss_mask"},
        {[](auto& s) {
           s.loss_mask = {1, 0, 1, 1, 0};
           s.loss_mask_checksum = std::int64_t{1} << 32;
         },
         "loss_mask_checksum is 4294967296"},
        {[](auto& s) { s.tokenizer = "sentencepiece"; }, "fingerprint"},
        {[](auto& s) { s.tokens.clear(); }, "'/tokens'"},
        {[](auto& s) { s.documents.clear(); }, "'/documents'"},
        {[](auto& s) { s.documents = {0, 1, 2, 3, 4, 5}; }, "6 documents"},
        {[](auto& s) {
           s.documents = {1, 3};
         },
         "document 0 starts at offset 1"},
        {[](auto& s) {
           s.documents = {0, 3, 3};
         },
         "document 2 starts at offset 3"},
        {[](auto& s) {
           s.documents = {0, 3, 2};
         },
         "document 2 starts at offset 2"},
        {[](auto& s) {
           s.documents = {0, 5};
         },
         "document 1 starts at offset 5"}}) {
    RawShard shard;
    spoil(shard);
    shard.write(path);
    EXPECT_THAT(open_error(path), mentions(path, named));
  }
}

TEST_F(BadShard, TypesAndShapes) {
  const std::string path = folder_.file("a.h5");
  const auto write = [&](auto tokens, const io::Extents& extents, auto documents,
                         const std::vector<std::uint16_t>& loss_mask = {}) {
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
      if (!loss_mask.empty()) file.write("loss_mask", std::span(loss_mask), {loss_mask.size()});
      if (loss_mask.size() > 1) file.set_attribute("loss_mask_checksum", 0);
    });
    return open_error(path);
  };
  using U16 = std::vector<std::uint16_t>;
  using U64 = std::vector<std::uint64_t>;
  EXPECT_EQ(write(U16{1, 2}, {2}, U64{0}), "no error");
  EXPECT_THAT(write(std::vector<float>{1, 2}, {2}, U64{0}), mentions("tokens", "f32"));
  EXPECT_THAT(write(std::vector<std::int64_t>{1, 2}, {2}, U64{0}), mentions("tokens", "i64"));
  EXPECT_THAT(write(U16{1, 2}, {1, 2}, U64{0}), mentions("'/tokens'", "2 dimensions"));
  EXPECT_THAT(write(U16{1, 2}, {2}, std::vector<std::int64_t>{0}), mentions("'/documents'", "i64"));
  EXPECT_THAT(write(U16{1, 2}, {2}, U64{}), mentions("'/documents'"));
  EXPECT_THAT(write(U16{1, 2}, {2}, U64{0}, U16{1, 1}), mentions("'/loss_mask'", "u16"));
  EXPECT_THAT(write(U16{1, 2}, {2}, U64{0}, U16{1}), mentions("loss_mask_checksum"));
}

TEST_F(BadShard, Contents) {
  const std::string path = folder_.file("a.h5");
  RawShard{}.write(path);
  EXPECT_EQ(verify_error(path), "no error");
  RawShard bad_id, bad_checksum;
  bad_id.tokens[3] = 300;
  bad_id.write(path);
  EXPECT_THAT(verify_error(path), mentions(path, "offset 3", "id 300", "vocabulary 257"));
  bad_checksum.checksum = 12345;
  bad_checksum.write(path);
  EXPECT_THAT(verify_error(path), mentions(path, "00003039"));
  RawShard masked;
  masked.loss_mask = {0, 1, 1, 1, 0};
  masked.write(path);
  EXPECT_EQ(verify_error(path), "no error");
  masked.loss_mask_checksum = 12345;
  masked.write(path);
  EXPECT_THAT(verify_error(path), mentions(path, "loss_mask", "00003039"));
  masked.loss_mask[3] = 2;
  masked.write(path);
  EXPECT_THAT(verify_error(path), mentions(path, "loss_mask", "offset 3", "2"));
  EXPECT_THAT(error_text([&] {
                test::dataset_of(folder_, 4).read(0, {0, 0, 1, 4, 0, 4});
              }),
              mentions(path, "loss_mask", "offset 3"));
}

TEST(FindShards, FilesAndSortedFolders) {
  const TemporaryFolder folder;
  for (const char* name : {"c.h5", "a.h5", "b.txt"}) folder.write(name, "");
  const std::filesystem::path paths[] = {folder.file("x.h5"), folder.path()};
  EXPECT_THAT(find_shards(paths), ElementsAre(folder.file("x.h5"), folder.file("a.h5"), folder.file("c.h5")));
  std::filesystem::create_directory(folder.file("sub"));
  const std::filesystem::path empty[] = {folder.file("sub")};
  EXPECT_THAT(error_text([&] { find_shards(empty); }), mentions(folder.file("sub")));
  EXPECT_THROW(find_shards({}), Error);
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
  EXPECT_THAT(open_error(found[1]), mentions("links/c.h5'"));
}

TEST(TokenHistogram, Entropy) {
  TokenHistogram histogram;
  EXPECT_EQ(histogram.entropy(), 0);
  histogram.add(std::vector<std::int32_t>{3, 3, 3, 3});
  EXPECT_EQ(histogram.entropy(), 0);
  histogram.add(std::vector<std::int32_t>{0, 1, 2, 5});
  EXPECT_NEAR(histogram.entropy(), 0.5 * std::log(2) + 0.5 * std::log(8), 1e-12);
  EXPECT_EQ(histogram.total(), 8);
  histogram.add(std::vector<std::int32_t>(8, 2147483646));  // no table reaches so far
  EXPECT_NEAR(histogram.entropy(), 0.5 * std::log(2) + 0.5 * (0.5 * std::log(4) + 0.5 * std::log(16)), 1e-12);
}

TEST(TokenShard, StartsOfDocumentsAreReadForARange) {
  const TemporaryFolder folder;
  RawShard shard;  // of more documents than are read at once, of 1 to 7 tokens
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

/// The inputs of the fuzz target. Those named crashed_hdf5_N, shards with one to four changed bytes, ended in
/// a signal or an endless loop of the HDF5 library.
TEST(ShardCorpus, IsReadOrRefused) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ANNULUS_SHARD_CORPUS)) {
    const std::string name = entry.path().filename(), path = entry.path();
    const std::string error = error_text([&] { verify_shard(TokenShard::open(path)); });
    const bool good = !name.starts_with("refused_") && !name.starts_with("crashed_");
    if (good) {
      EXPECT_EQ(error, "no error") << name;
    } else if (name.starts_with("refused_") && name != "refused_hard" && name != "refused_cycle") {
      EXPECT_THAT(error, mentions(path, "'/tokens'"));
    } else if (error != "no error") {  // second names and damage to what no reader needs are passed over
      EXPECT_THAT(error, mentions(path));
    }
    ++files;
  }
  EXPECT_GE(files, 30);
}

}  // namespace
}  // namespace annulus::data
