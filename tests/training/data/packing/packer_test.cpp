#include <chrono>

#include "support/full_disk.hpp"
#include "training/data/packing/packer.hpp"

namespace annulus::data {
namespace {

using test::shards_in;

TEST_F(PackerTest, WalksInSortedOrder) {
  add("b.txt", "bee");
  add("a/z.txt", "zed");
  add("a.txt", "ay");
  add(".hidden", "no");
  add(".git/config", "no");
  add("c.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\", \"more\": 1}\n");
  const PackSummary summary = pack(options());
  EXPECT_THAT(documents_in(folder_.path() / "out"), ElementsAre("ay", "zed", "bee", "one", "two"));
  EXPECT_EQ(summary.documents, 5);
  EXPECT_EQ(summary.tokens, 2 + 3 + 3 + 3 + 3 + 5);
  EXPECT_THAT(summary.shards, ElementsAre("tokens-000000.h5"));
  EXPECT_GT(summary.unigram_entropy, 0);
}

TEST_F(PackerTest, TakesFilesAndFoldersInTheGivenOrder) {
  add("b.txt", "bee");
  const std::string named = folder_.write("named.weird", "named");
  PackOptions with = options();
  with.inputs = {named, folder_.path() / "in", named};
  with.extensions = {".txt"};  // counts for folders only
  add("c.bin", "cee");
  pack(with);
  EXPECT_THAT(documents_in(folder_.path() / "out"), ElementsAre("named", "bee", "named"));
}

TEST_F(PackerTest, SkipsWhatIsNoTextAndCounts) {
  add("empty", "");
  add("nul", std::string_view("a\0b", 3));
  add("latin1",
      "Gr\xfc\xdf"
      "e");
  add("good", "Grüße");
  add("lines.jsonl", "{\"text\": \"\"}\n{\"text\": \"a\\u0000b\"}\n\n");
  const PackSummary summary = pack(options());
  EXPECT_EQ(summary.documents, 1);
  EXPECT_EQ(summary.skipped_empty, 2);
  EXPECT_EQ(summary.skipped_binary, 3);
}

TEST_F(PackerTest, ShardsHoldWholeDocumentsAndEqualInputsGiveEqualShards) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  std::vector<std::int64_t> sizes;
  with.on_shard = [&](const PackedShard& shard, std::int64_t) { sizes.push_back(shard.tokens); };
  const PackSummary summary = pack(with);
  // d0 11, d1 18 | d2 25 | d2b 131 | d3 32, first 6 | s… 41, "third ü" 9 | d4 39 | d5 46
  EXPECT_THAT(sizes, ElementsAre(29, 25, 131, 38, 50, 39, 46));
  EXPECT_EQ(summary.documents, 10);
  EXPECT_EQ(summary.skipped_binary, 1);
  EXPECT_EQ(summary.skipped_empty, 2);
  EXPECT_EQ(documents_in(with.output)[5], "first");
  with.output = folder_.path() / "again";
  pack(with);
  EXPECT_EQ(shards_in(folder_.path() / "out"), shards_in(folder_.path() / "again"));
}

TEST_F(PackerTest, GoesOnAfterAnInterruptionAnywhere) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  const PackSummary whole = pack(with);
  const auto expected = shards_in(with.output);
  ASSERT_EQ(expected.size(), 7u);
  for (int stop = 0; stop < 7; ++stop) {
    with.output = folder_.path() / ("out" + std::to_string(stop));
    pack_until(with, stop);
    const fs::path leftover = io::temporary_name(with.output / "tokens-000006.h5");
    std::ofstream(leftover) << "what a killed run leaves";
    std::vector<std::int64_t> written;
    with.on_shard = [&](const PackedShard&, std::int64_t number) { written.push_back(number); };
    const PackSummary resumed = pack(with);
    EXPECT_EQ(shards_in(with.output), expected) << stop;
    EXPECT_FALSE(fs::exists(leftover));
    EXPECT_EQ(written.size(), static_cast<std::size_t>(6 - stop));
    EXPECT_EQ(resumed.resumed_shards, stop + 1);
    EXPECT_EQ(resumed.tokens, whole.tokens);
    EXPECT_EQ(resumed.documents, whole.documents);
    EXPECT_EQ(resumed.skipped_binary, whole.skipped_binary) << stop;
    EXPECT_EQ(resumed.skipped_empty, whole.skipped_empty) << stop;
    EXPECT_EQ(resumed.unigram_entropy, whole.unigram_entropy);
  }
}

TEST_F(PackerTest, FinishedPackIsLeftAlone) {
  add_many();
  const PackSummary first = pack(options());
  const auto when = fs::last_write_time(options().output / "tokens-000000.h5");
  PackOptions with = options();
  with.on_shard = [](const PackedShard&, std::int64_t) { FAIL() << "nothing is to be written"; };
  const PackSummary second = pack(with);
  EXPECT_TRUE(second.was_complete);
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.unigram_entropy, first.unigram_entropy);
  EXPECT_EQ(fs::last_write_time(options().output / "tokens-000000.h5"), when);
}

TEST_F(PackerTest, OtherArgumentsOrInputsAreErrors) {
  const std::string input = add("a", "text");
  pack(options());
  PackOptions with = options();
  with.shard_tokens = 7;
  EXPECT_THAT(pack_error(with), mentions(with.output.string(), "--shard-tokens", "33554432", "7"));
  with = options();
  with.extensions = {""};
  EXPECT_THAT(pack_error(with), mentions("--extensions"));
  fs::last_write_time(input, fs::last_write_time(input) + std::chrono::seconds(5));
  EXPECT_THAT(pack_error(options()), mentions("inputs", with.output.string()));
  fs::last_write_time(input, fs::last_write_time(input) - std::chrono::seconds(5));
  EXPECT_TRUE(pack(options()).was_complete);
  add("b", "more");
  EXPECT_THAT(pack_error(options()), mentions("inputs", with.output.string()));
}

/// A pack that stopped at a bad line goes on when the line is correct: in the first shard, and behind others.
TEST_F(PackerTest, GoesOnWhenABadLineIsCorrected) {
  const std::string before = "{\"text\": \"first of all\"}\n{\"text\": \"second to none\"}\n",
                    behind = "{\"text\": \"fourth\"}\n";
  for (const int size : {1000, 16}) {
    PackOptions with = options(fmt::format("out{}", size));
    with.shard_tokens = size;
    add("a.jsonl", before + "{\"txt\": 1}\n" + behind);
    add("b", "behind");
    EXPECT_THAT(pack_error(with), mentions("a.jsonl', line 3: "));
    add("a.jsonl", before + "{\"text\": \"third\"}\n" + behind);
    add("c", "one more");
    EXPECT_EQ(pack(with).resumed_shards, size == 16 ? 1 : 0);
    PackOptions anew = with;
    anew.output = folder_.path() / fmt::format("anew{}", size);
    pack(anew);
    EXPECT_EQ(shards_in(with.output), shards_in(anew.output));
    fs::remove(folder_.path() / "in/c");
  }
}

TEST_F(PackerTest, ChangesOfWhatWasPackedAreErrors) {
  add("a", "a file before");
  add("b.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"second\"}\n{\"txt\": 1}\n");
  PackOptions with = options();
  with.shard_tokens = 16;  // a file before | first of all | second
  EXPECT_THAT(pack_error(with), mentions("b.jsonl', line 3: "));
  ASSERT_EQ(shards_in(with.output).size(), 2u);
  add("b.jsonl", "{\"text\": \"first of ALL\"}\n{\"text\": \"second\"}\n");
  EXPECT_THAT(pack_error(with), mentions("inputs", "25 bytes"));
  add("b.jsonl", "{\"text\"");
  EXPECT_THAT(pack_error(with), mentions("inputs"));
  add("b.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"SECOND\"}\n");
  add("a0", "a file between");
  EXPECT_THAT(pack_error(with), mentions("inputs"));
  fs::remove(folder_.path() / "in/a0");
  EXPECT_EQ(pack(with).resumed_shards, 2);
  EXPECT_THAT(documents_in(with.output), ElementsAre("a file before", "first of all", "SECOND"));
}

TEST_F(PackerTest, BadInputsAreErrors) {
  const auto refusal = [&](auto spoil) {
    PackOptions with = options();
    spoil(with);
    return pack_error(with);
  };
  EXPECT_THAT(refusal([&](auto& o) { o.inputs = {folder_.file("none")}; }), mentions(folder_.file("none")));
  EXPECT_NE(refusal([](auto& o) { o.inputs = {}; }), "no error");
  add("a", "text");
  EXPECT_THAT(refusal([](auto& o) { o.extensions = {".md"}; }), mentions(".md", "no extension (1)"));
  EXPECT_THAT(refusal([&](auto& o) { o.output = folder_.path() / "in/shards"; }), mentions("in/shards"));
  EXPECT_THAT(refusal([](auto& o) { o.shard_tokens = 0; }), mentions("--shard-tokens", "0"));
  const std::string lines = add("b.jsonl", "{\"text\": \"ok\"}\n{\"txt\": 1}\n");
  EXPECT_THAT(pack_error(options("other")), mentions("'" + lines + "', line 2: ", "\"text\""));
}

TEST_F(PackerTest, InputsWithoutTextAreAnErrorAndLeaveTheFolderFree) {
  add("nul", std::string_view("\0", 1));
  add("empty", "");
  EXPECT_NE(pack_error(options()), "no error");
  add("good", "text");
  EXPECT_EQ(pack(options()).documents, 1);
}

TEST_F(PackerTest, FullDiskLosesNothingAndCanBeResumed) {
  add("a", std::string(3000, 'a'));
  add("b", std::string(60000, 'b'));
  PackOptions with = options();
  with.shard_tokens = 4000;
  {
    const annulus::test::FileSizeLimit limit(40000);
    EXPECT_THAT(pack_error(with), mentions("tokens-000001.h5", "File too large"));
  }
  EXPECT_EQ(shards_in(with.output).size(), 1u);
  EXPECT_EQ(pack(with).resumed_shards, 1);
  EXPECT_EQ(documents_in(with.output).size(), 2u);
}

TEST_F(PackerTest, SaysHowManyBytesItHasReadOfThoseThatAreLeft) {
  add("a.txt", "0123456789");
  add("b.txt", "01234");
  add("c.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y\"}\n");
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  PackOptions with = options();
  with.shard_tokens = 12;
  with.on_read = [&](std::int64_t read, std::int64_t total) { seen.emplace_back(read, total); };
  pack_until(with, 0);  // when b is read, which the first shard has no room for
  EXPECT_THAT(seen, ElementsAre(std::pair(10, 41)));
  seen.clear();
  pack(with);
  EXPECT_THAT(seen, ElementsAre(std::pair(5, 31), std::pair(18, 31), std::pair(31, 31)));
}

}  // namespace
}  // namespace annulus::data
