#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <annulus/data/packer.hpp>
#include <annulus/data/verify.hpp>
#include <annulus/io/atomic.hpp>

#include "data/shards.hpp"
#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;
using annulus::test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The documents of all shards of a folder, decoded.
std::vector<std::string> documents_in(const fs::path& folder) {
  std::vector<std::string> texts;
  test::for_each_document(folder, [&](const TokenShard& shard, const std::vector<std::int32_t>& ids) {
    EXPECT_EQ(ids.back(), shard.header().tokenizer.end_of_document);
    texts.push_back(shard.tokenizer()->decode(ids));
  });
  return texts;
}

/// Names and contents of the shards of a folder.
std::map<std::string, std::string> shards_in(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".h5") contents[entry.path().filename()] = io::read_text(entry.path());
  }
  return contents;
}

class PackerTest : public testing::Test {
 protected:
  PackOptions options(const std::string& output = "out") const {
    PackOptions options;
    options.inputs = {folder_.path() / "in"};
    options.output = folder_.path() / output;
    options.tokenizer = make_byte_tokenizer();
    return options;
  }

  std::string add(const std::string& name, std::string_view content) const {
    fs::create_directories((folder_.path() / "in" / name).parent_path());
    return folder_.write("in/" + name, content);
  }

  /// Ten documents that make several shards of 50 tokens, one of them longer than that, and some that are
  /// skipped.
  void add_many() const {
    for (int i = 0; i < 6; ++i)
      add("d" + std::to_string(i), std::string(10 + 7 * i, static_cast<char>('a' + i)));
    add("d2b", std::string(130, 'L'));
    add("d3.jsonl", "{\"text\": \"first\"}\n\n{\"text\": \"" + std::string(40, 's') +
                        "\"}\n{\"text\": \"\"}\n" + "{\"text\": \"third \\u00fc\"}");
    add("d1.bin", std::string("\0\1", 2));
    add("d4.empty", "");
  }

  TemporaryFolder folder_;
};

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

TEST_F(PackerTest, ShardsHoldWholeDocuments) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  std::vector<std::int64_t> sizes;
  with.on_shard = [&](const ShardHeader& shard, std::int64_t) { sizes.push_back(shard.tokens); };
  const PackSummary summary = pack(with);
  // d0 11, d1 18 | d2 25 | d2b 131 | d3 32, first 6 | s… 41, "third ü" 9 | d4 39 | d5 46
  EXPECT_THAT(sizes, ElementsAre(29, 25, 131, 38, 50, 39, 46));
  EXPECT_EQ(summary.documents, 10);
  EXPECT_EQ(summary.skipped_binary, 1);
  EXPECT_EQ(summary.skipped_empty, 2);
  EXPECT_EQ(documents_in(with.output)[5], "first");
}

TEST_F(PackerTest, EqualInputsGiveEqualShards) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  pack(with);
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
    with.on_shard = [&](const ShardHeader&, std::int64_t number) {
      if (number == stop) throw std::runtime_error("interrupted");
    };
    EXPECT_THROW(pack(with), std::runtime_error);
    const fs::path leftover = io::temporary_name(with.output / "tokens-000006.h5");
    std::ofstream(leftover) << "what a killed run leaves";
    std::vector<std::int64_t> written;
    with.on_shard = [&](const ShardHeader&, std::int64_t number) { written.push_back(number); };
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

TEST_F(PackerTest, ShardThatTheManifestDoesNotKnowYetIsWrittenAgain) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  pack(with);
  const auto expected = shards_in(with.output);
  with.output = folder_.path() / "killed";
  std::string manifest;
  with.on_shard = [&](const ShardHeader&, std::int64_t number) {
    if (number == 2) manifest = io::read_text(with.output / "pack.json");
    if (number == 3) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(pack(with), std::runtime_error);
  io::write_text_atomically(with.output / "pack.json", manifest);  // as if killed between shard and manifest
  with.on_shard = nullptr;
  EXPECT_EQ(pack(with).resumed_shards, 3);
  EXPECT_EQ(shards_in(with.output), expected);
}

TEST_F(PackerTest, FinishedPackIsLeftAlone) {
  add_many();
  const PackSummary first = pack(options());
  const auto when = fs::last_write_time(options().output / "tokens-000000.h5");
  PackOptions with = options();
  with.on_shard = [](const ShardHeader&, std::int64_t) { FAIL() << "nothing is to be written"; };
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
  EXPECT_THAT(error_text([&] { pack(with); }),
              AllOf(HasSubstr(with.output.string()), HasSubstr("--shard-tokens (33554432, now 7)"),
                    HasSubstr("another output folder")));
  with = options();
  with.extensions = {""};
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("--extensions"));
  fs::last_write_time(input, fs::last_write_time(input) + std::chrono::seconds(5));
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("other inputs"));
  fs::last_write_time(input, fs::last_write_time(input) - std::chrono::seconds(5));
  EXPECT_TRUE(pack(options()).was_complete);
  add("b", "more");
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("other inputs"));
}

/// A pack that stopped at a bad line goes on when the line is correct: in the first shard, and behind others.
TEST_F(PackerTest, GoesOnWhenABadLineIsCorrected) {
  for (const char* size : {"1000", "16"}) {
    PackOptions with = options(fmt::format("out{}", size));
    with.shard_tokens = std::stoi(size);
    add("a.jsonl",
        "{\"text\": \"first of all\"}\n{\"text\": \"second to none\"}\n{\"txt\": 1}\n{\"text\": "
        "\"fourth\"}\n");
    add("b", "behind");
    EXPECT_THAT(error_text([&] { pack(with); }),
                AllOf(HasSubstr("a.jsonl', line 3: "), HasSubstr("goes on")));
    add("a.jsonl",
        "{\"text\": \"first of all\"}\n{\"text\": \"second to none\"}\n{\"text\": \"third\"}\n{\"text\": "
        "\"fourth\"}\n");
    add("c", "one more");
    const PackSummary resumed = pack(with);
    EXPECT_EQ(resumed.resumed_shards, with.shard_tokens == 16 ? 1 : 0);
    PackOptions anew = with;
    anew.output = folder_.path() / fmt::format("anew{}", size);
    pack(anew);
    EXPECT_EQ(shards_in(with.output), shards_in(anew.output));
    fs::remove(folder_.path() / "in/c");
  }
}

TEST_F(PackerTest, ChangesOfWhatWasPackedAreErrors) {
  const std::string bad = "{\"txt\": 1}\n";
  add("a", "a file before");
  add("b.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"second\"}\n" + bad);
  PackOptions with = options();
  with.shard_tokens = 16;  // a file before | first of all | second
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("b.jsonl', line 3: "));
  ASSERT_EQ(shards_in(with.output).size(), 2u);
  add("b.jsonl", "{\"text\": \"first of ALL\"}\n{\"text\": \"second\"}\n");
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("other inputs (25 bytes of the next file"));
  add("b.jsonl", "{\"text\"");
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("other inputs"));
  add("b.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"SECOND\"}\n");
  add("a0", "a file between");
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("other inputs"));
  fs::remove(folder_.path() / "in/a0");
  EXPECT_EQ(pack(with).resumed_shards, 2);
  EXPECT_THAT(documents_in(with.output), ElementsAre("a file before", "first of all", "SECOND"));
}

TEST_F(PackerTest, MissingOrForeignShardsOfThePackAreErrors) {
  add("a", "text");
  pack(options());
  const fs::path shard = options().output / "tokens-000000.h5";
  fs::rename(shard, folder_.path() / "elsewhere.h5");
  EXPECT_THAT(error_text([&] { pack(options()); }),
              AllOf(HasSubstr(shard.string()), HasSubstr("No such file")));
  const std::vector<std::int32_t> tokens{1, 2};
  const std::vector<std::int64_t> documents{0};
  write_shard(shard, *make_byte_tokenizer(), tokens, documents);
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("not the shard that pack.json lists"));
}

TEST_F(PackerTest, FoldersWithOtherThingsAreErrors) {
  add("a", "text");
  const fs::path output = options().output;
  fs::create_directories(output);
  std::ofstream(output / "mine.h5") << "x";
  EXPECT_THAT(error_text([&] { pack(options()); }), AllOf(HasSubstr("'mine.h5'"), HasSubstr("empty folder")));
  std::ofstream(output / "pack.json") << "{\"format\": \"other\"}";
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("no manifest"));
  std::ofstream(output / "pack.json") << "{\"format\": \"annulus-pack\", \"version\": 9}";
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("version 9"));
  std::ofstream(output / "pack.json") << "{\"format\": \"annulus-pack\", \"version\": 2}";
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("damaged"));
}

TEST_F(PackerTest, BadInputsAreErrors) {
  PackOptions with = options();
  with.inputs = {folder_.file("none")};
  EXPECT_THAT(error_text([&] { pack(with); }),
              AllOf(HasSubstr(folder_.file("none")), HasSubstr("does not exist")));
  with.inputs = {};
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("nothing to pack"));
  add("a", "text");
  with = options();
  with.extensions = {".md"};
  EXPECT_THAT(error_text([&] { pack(with); }),
              HasSubstr("no files with the extensions .md; there are no extension (1)"));
  with = options();
  with.output = folder_.path() / "in/shards";
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("lies inside the input"));
  with = options();
  with.shard_tokens = 0;
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("--shard-tokens is 0"));
  const std::string lines = add("b.jsonl", "{\"text\": \"ok\"}\n{\"txt\": 1}\n");
  EXPECT_THAT(error_text([&] { pack(options("other")); }),
              AllOf(HasSubstr("'" + lines + "', line 2: "), HasSubstr("no key \"text\"")));
}

TEST_F(PackerTest, InputsWithoutTextAreAnErrorAndLeaveTheFolderFree) {
  add("nul", std::string_view("\0", 1));
  add("empty", "");
  EXPECT_THAT(error_text([&] { pack(options()); }), HasSubstr("hold no text: 1 are empty, 1 hold a NUL"));
  add("good", "text");
  EXPECT_EQ(pack(options()).documents, 1);
}

TEST_F(PackerTest, UnwritableOutput) {
  add("a", "text");
  PackOptions with = options();
  with.output = folder_.write("file", "x");
  EXPECT_THAT(error_text([&] { pack(with); }),
              AllOf(HasSubstr(with.output.string()), HasSubstr("can be written")));
  with.output /= "sub";
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr(with.output.string()));
}

TEST_F(PackerTest, FullDiskLosesNothingAndCanBeResumed) {
  add("a", std::string(3000, 'a'));
  add("b", std::string(60000, 'b'));
  PackOptions with = options();
  with.shard_tokens = 4000;
  {
    const annulus::test::FileSizeLimit limit(40000);
    EXPECT_THAT(error_text([&] { pack(with); }),
                AllOf(HasSubstr("tokens-000001.h5"), HasSubstr("File too large")));
  }
  EXPECT_EQ(shards_in(with.output).size(), 1u);
  EXPECT_EQ(pack(with).resumed_shards, 1);
  EXPECT_EQ(documents_in(with.output).size(), 2u);
}

/// Lines that are no records, from what users had, and the cause that is told.
struct BadLine {
  std::string line, cause;
};
std::vector<BadLine> bad_lines() {
  const auto nested = [](std::size_t depth) {
    return R"({"text": "a", "more": )" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  return {{R"({"text":"a","score":NaN})", "NaN at byte 21 is no value of JSON"},
          {R"({"text":"a","score":-Infinity})", "Infinity at byte 22 is no value of JSON"},
          {R"({"text":"half \ud83d emoji"})", "surrogate U+D800..U+DBFF must be followed by"},
          {R"({"text":"a","other":"\udc00"})", "surrogate U+DC00..U+DFFF must follow"},
          {"{\"text\":\"Gr\xfc\xdf"
           "e\"}",
           "no JSON at byte 12 (invalid string: ill-formed UTF-8"},
          {R"({"text":null})", "its \"text\" is null, no string"},
          {R"({"text":["a"]})", "its \"text\" is an array, no string"},
          {R"({"text":"a","text":{"text":"b"}})", "its \"text\" is an object, no string"},
          {R"({"more":{"text":"b"}})", "no key \"text\""},
          {R"([{"text":"a"}])", "no JSON object"},
          {R"("text")", "no JSON object"},
          {R"({"text":"a"} {"text":"b"})", "no JSON at byte 14"},
          {R"({"text":"a)", "missing closing quote"},
          {R"({"text":"a",)", "ends in the middle"},
          {R"({"text":"a","number":1e999})", "number overflow"},
          {nested(100), "more than 100 levels"},
          {std::string(1'000'000, '['), "more than 100 levels"},
          {std::string(100'000, '\0'), "a NUL at byte 1"},
          {std::string("{\"text\":\"a\"}") + '\0', "a NUL at byte 13"}};
}

TEST_F(PackerTest, BadLinesAreNamedWithTheirCauseAndCanBeSkipped) {
  for (const auto& [line, cause] : bad_lines()) {
    const std::string path = add("a.jsonl", "{\"text\":\"good\"}\n\n" + line + "\n{\"text\":\"after\"}\n");
    PackOptions with = options();
    const std::string error = error_text([&] { pack(with); });
    EXPECT_THAT(
        error, AllOf(HasSubstr("'" + path + "', line 3: "), HasSubstr(cause), HasSubstr("--bad-lines skip")));
    EXPECT_LT(error.size(), 600u);  // the line itself may be anything
    with.bad_lines = BadLines::skip;
    std::vector<std::string> notes;
    with.on_note = [&](const std::string& text) { notes.push_back(text); };
    EXPECT_EQ(pack(with).skipped_lines, 1) << cause;  // goes on in the same folder
    EXPECT_THAT(documents_in(with.output), ElementsAre("good", "after"));
    EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("a.jsonl', line 3 is passed over"), HasSubstr(cause))));
    fs::remove_all(with.output);
  }
}

TEST_F(PackerTest, LinesAreCountedBehindAnInterruption) {
  const std::string good = "{\"text\": \"ten bytes.\"}\n\n";
  add("a.jsonl", good + good + good + "{}\n" + good + "{\n");
  PackOptions with = options();
  with.shard_tokens = 12;
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("line 7: "));
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("line 7: "));
  with.bad_lines = BadLines::skip;
  std::vector<std::string> notes;
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  const PackSummary summary = pack(with);
  EXPECT_EQ(summary.resumed_shards, 2);
  EXPECT_EQ(summary.skipped_lines, 2);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("line 7 "), HasSubstr("line 10 ")));
}

TEST_F(PackerTest, DocumentsAreTheBytesOfTheirFiles) {
  add("bom.jsonl", "\xef\xbb\xbf{\"text\":\"one\\r\\n\"}\r\n\r\n{\"text\":\"two\"}\r\n");
  add("bom.txt", "\xef\xbb\xbftext\n");
  add("crlf.txt", "one\r\ntwo\r\n");
  add("only_bom.jsonl", "\xef\xbb\xbf\n");
  add("deep.jsonl", R"({"text":"deep","more":)" + std::string(99, '[') + std::string(99, ']') + "}");
  pack(options());
  EXPECT_THAT(documents_in(options().output),
              ElementsAre("one\r\n", "two", "\xef\xbb\xbftext\n", "one\r\ntwo\r\n", "deep"));
}

TEST_F(PackerTest, NamesAndFirstLinesTellJsonLines) {
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  add("a.JSONL", lines);
  add("b.ndjson", lines);
  add("c.json", "\n" + lines);
  add("d.json", "{\"name\": \"x\"}\n");
  add("e.json", "{\n  \"text\": \"x\"\n}\n");
  add("f.json", "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n");
  add("g.txt", lines);
  std::vector<std::string> notes;
  PackOptions with = options();
  with.shard_tokens = 1;  // each document alone, so that each can be where a pack stops
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  pack(with);
  EXPECT_THAT(documents_in(with.output),
              ElementsAre("one", "two", "one", "two", "one", "two", "{\"name\": \"x\"}\n",
                          "{\n  \"text\": \"x\"\n}\n",
                          "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n", lines));
  EXPECT_THAT(notes,
              ElementsAre(HasSubstr("c.json' is read as JSON lines"),
                          AllOf(HasSubstr("f.json' is an array of records"), HasSubstr("one document"))));
  const auto expected = shards_in(with.output);
  for (int stop = 0; stop < 9; ++stop) {
    with.output = folder_.path() / ("stopped" + std::to_string(stop));
    with.on_shard = [&](const ShardHeader&, std::int64_t number) {
      if (number == stop) throw std::runtime_error("interrupted");
    };
    EXPECT_THROW(pack(with), std::runtime_error);
    with.on_shard = nullptr;
    pack(with);
    EXPECT_EQ(shards_in(with.output), expected) << stop;
  }
}

TEST_F(PackerTest, ExtensionsNeedNoDot) {
  add("a.txt", "text");
  add("b.md", "other");
  PackOptions with = options();
  with.extensions = {"txt"};
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text"));
  with.extensions = {".txt"};
  EXPECT_TRUE(pack(with).was_complete);
  with = options("out2");
  with.extensions = {"text", "rst"};
  EXPECT_THAT(error_text([&] { pack(with); }),
              HasSubstr("no files with the extensions .text,.rst; there are .md (1), .txt (1)"));
}

/// Links out of the input, and back into it.
TEST_F(PackerTest, LinksInFoldersAreFollowedOnDemand) {
  add("a.txt", "text");
  const std::string secret = folder_.write("secret", "secret");
  fs::create_directories(folder_.path() / "elsewhere/below");
  folder_.write("elsewhere/below/b.txt", "elsewhere");
  fs::create_symlink(secret, folder_.path() / "in/link.txt");
  fs::create_symlink(folder_.path() / "elsewhere", folder_.path() / "in/more");
  fs::create_symlink("nothing", folder_.path() / "in/dangling");
  fs::create_symlink(folder_.path() / "in", folder_.path() / "elsewhere/below/back");
  std::vector<std::string> notes;
  PackOptions with = options();
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text"));
  EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("3 links"), HasSubstr("--follow-links"))));

  notes.clear();
  with.output = folder_.path() / "followed";
  with.follow_links = true;
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text", "secret", "elsewhere"));
  EXPECT_THAT(notes, testing::UnorderedElementsAre(
                         HasSubstr("in/more/below/back' leads back"),
                         AllOf(HasSubstr("in/dangling' is passed over"), HasSubstr("No such file"))));
  with.output = folder_.path() / "elsewhere/below/out";
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("lies inside the input"));

  fs::remove(folder_.path() / "in/a.txt");
  with = options("none");
  EXPECT_THAT(error_text([&] { pack(with); }), AllOf(HasSubstr("no files"), HasSubstr("--follow-links")));
  with.inputs = {folder_.path() / "in/link.txt", folder_.path() / "in/more"};  // named, so meant
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("secret", "elsewhere"));
}

TEST_F(PackerTest, WhatIsNoFileIsPassedOverWithANote) {
  add("a.txt", "text");
  ASSERT_EQ(::mkfifo((folder_.path() / "in/pipe.jsonl").c_str(), 0600), 0);
  std::vector<std::string> notes;
  PackOptions with = options();
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  EXPECT_EQ(pack(with).documents, 1);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("pipe.jsonl")));
  with.inputs = {folder_.path() / "in/pipe.jsonl"};
  with.output = folder_.path() / "other";
  EXPECT_THAT(error_text([&] { pack(with); }), AllOf(HasSubstr("pipe.jsonl"), HasSubstr("neither")));
}

TEST_F(PackerTest, UnreadableFoldersAreNamed) {
  add("a.txt", "text");
  add("closed/b.txt", "text");
  const fs::path closed = folder_.path() / "in/closed";
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(closed, fs::perms::none);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "root may read everything";
  const std::string error = error_text([&] { pack(options()); });
  ASSERT_EQ(::seteuid(user), 0);
  fs::permissions(closed, fs::perms::owner_all);
  EXPECT_THAT(error, AllOf(HasSubstr("'" + closed.string() + "'"), HasSubstr("Permission denied")));
}

TEST_F(PackerTest, OnlyItsOwnLeftoversAreRemoved) {
  add("a", "text");
  const fs::path output = options().output;
  const std::string digits = "0123456789abcdef0123456789abcdef";
  const std::string ours[] = {"tokens-000000.h5.tmp-" + digits, "pack.json.tmp-" + digits};
  const std::string theirs[] = {"notes.tmp-1", "notes.tmp-" + digits, "tokens-1.h5.tmp-" + digits,
                                "tokens-000000.h5.tmp-" + digits + "0", "tokens-000000.h5.tmp-mine"};
  fs::create_directories(output / ("tokens-000001.h5.tmp-" + digits) / "full");
  fs::create_directory(output / "empty.tmp-1");
  for (const std::string& name : ours) std::ofstream(output / name) << "half";
  for (const std::string& name : theirs) std::ofstream(output / name) << "precious";
  EXPECT_EQ(pack(options()).documents, 1);
  for (const std::string& name : ours) EXPECT_FALSE(fs::exists(output / name)) << name;
  for (const std::string& name : theirs) EXPECT_EQ(io::read_text(output / name), "precious");
  EXPECT_TRUE(fs::exists(output / ("tokens-000001.h5.tmp-" + digits) / "full"));
  EXPECT_TRUE(fs::exists(output / "empty.tmp-1"));
}

/// Makes a file longer than it is, without room on the disk: zeros follow.
void extend(const std::string& path, std::uintmax_t bytes) {
  fs::resize_file(path, bytes);
}
std::int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * std::int64_t{1024};
}

TEST_F(PackerTest, LargeFilesAreNotReadWhole) {
  const std::int64_t before = peak_memory();
  add("a.txt", "text");
  extend(add("b.bin", ""), std::uintmax_t{3} << 30);
  extend(add("c.txt", std::string(100, 'x') + "\xff"), std::uintmax_t{3} << 30);
  extend(add("d.json", "{\n"), std::uintmax_t{3} << 30);
  EXPECT_EQ(pack(options()).skipped_binary, 3);
  extend(add("e.jsonl", ""), std::uintmax_t{3} << 30);
  EXPECT_THAT(error_text([&] { pack(options("out2")); }), HasSubstr("e.jsonl', line 1: a NUL at byte 1"));
  EXPECT_LT(peak_memory() - before, std::int64_t{600} << 20);
}

TEST_F(PackerTest, DocumentsAndLinesHaveALargestSize) {
  const std::string large = add("a.txt", std::string(std::size_t{1} << 20, 'x'));
  extend(large, static_cast<std::uintmax_t>(longest_document) + 1);
  EXPECT_THAT(error_text([&] { pack(options()); }),
              AllOf(HasSubstr(large), HasSubstr("1073741825 bytes"), HasSubstr("cut it into files")));
  fs::remove(large);
  const std::string lines = add("b.jsonl", "{\"text\": \"first\"}\n");
  {
    std::ofstream file(lines, std::ios::app);
    const std::string part(std::size_t{1} << 20, 'x');
    for (std::int64_t bytes = 0; bytes <= longest_line; bytes += std::ssize(part)) file << part;
    file << "\n{\"text\": \"last\"}\n";
  }
  PackOptions with = options();
  EXPECT_THAT(error_text([&] { pack(with); }),
              AllOf(HasSubstr("b.jsonl', line 2: "), HasSubstr("268435456 bytes")));
  with.bad_lines = BadLines::skip;
  EXPECT_EQ(pack(with).skipped_lines, 1);
  EXPECT_THAT(documents_in(with.output), ElementsAre("first", "last"));
}

/// Manifests that others have changed: each is refused, none is followed.
TEST_F(PackerTest, DamagedManifestsAreRefused) {
  add("a.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"second\"}\n{}\n");
  PackOptions with = options();
  with.shard_tokens = 13;
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr("line 3"));
  const fs::path path = with.output / "pack.json";
  const nlohmann::json sound = nlohmann::json::parse(io::read_text(path));
  ASSERT_EQ(sound["next"]["file"], 0);
  const auto refused = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json changed = sound;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    std::ofstream(path) << changed;
    EXPECT_THAT(
        error_text([&] { pack(with); }),
        AllOf(HasSubstr(path.string()), testing::AnyOf(HasSubstr("damaged"), HasSubstr("choose another"))))
        << pointer << " " << value;
  };
  for (const char* number :
       {"/next/file", "/next/offset", "/next/checksum", "/skipped/binary", "/skipped/empty", "/skipped/lines",
        "/arguments/shard_tokens", "/arguments/tokenizer/vocabulary", "/shards/0/tokens",
        "/shards/0/documents", "/shards/0/checksum"})
    for (const nlohmann::json& value :
         {nlohmann::json(-1), nlohmann::json(1e300), nlohmann::json("x"), nlohmann::json(),
          nlohmann::json(true), nlohmann::json(18446744073709551615u)})
      refused(number, value);
  refused("/shards/0/file", "../tokens-000000.h5");
  refused("/shards/0/file", "tokens-000001.h5");
  refused("/shards", nlohmann::json::object());
  refused("/arguments", 1);
  refused("/arguments/extensions", {1});
  refused("/arguments/tokenizer/name", 1);
  refused("/complete", 1);
  refused("/unigram_entropy", "x");
  refused("/format", 5);
  refused("/version", "2");
  std::ofstream(path) << std::string(1'000'000, '[');
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr(path.string()));
  std::ofstream(path) << "";
  extend(path, std::uintmax_t{3} << 30);
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr(path.string()));
  std::ofstream(path) << sound;
  with.bad_lines = BadLines::skip;
  EXPECT_EQ(pack(with).resumed_shards, 1);
}

TEST_F(PackerTest, LinksInThePlaceOfItsFilesAreRefused) {
  add("a.txt", "some text");
  const std::string victim = folder_.write("victim", "precious");
  for (const char* name : {"tokens-000000.h5", "pack.json"}) {
    PackOptions with = options();
    with.output = folder_.path() / fmt::format("out-{}", name);
    std::filesystem::create_directory(with.output);
    std::filesystem::create_symlink(victim, with.output / name);
    EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr(name));
    EXPECT_EQ(io::read_text(victim), "precious");
  }
}

TEST_F(PackerTest, SaysHowManyBytesItHasReadOfThoseThatAreLeft) {
  add("a.txt", "0123456789");
  add("b.txt", "01234");
  add("c.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y\"}\n");
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  PackOptions options = this->options();
  options.shard_tokens = 12;
  options.on_read = [&](std::int64_t read, std::int64_t total) { seen.emplace_back(read, total); };
  options.on_shard = [](const ShardHeader&, std::int64_t) { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(pack(options), std::runtime_error);  // when b is read, which the first shard has no room for
  EXPECT_THAT(seen, ElementsAre(std::pair(10, 41)));
  seen.clear();
  options.on_shard = {};
  pack(options);
  EXPECT_THAT(seen, ElementsAre(std::pair(5, 31), std::pair(18, 31), std::pair(31, 31)));
}

}  // namespace
}  // namespace annulus::data
