// What is a document, and which files and lines are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <annulus/data/packer.hpp>
#include <annulus/data/verify.hpp>

#include "data/packer.hpp"
#include "support/error_text.hpp"

namespace annulus::data {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;
using test::documents_in;
using test::shards_in;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using PackInputs = test::PackerTest;

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

TEST_F(PackInputs, BadLinesAreNamedWithTheirCauseAndCanBeSkipped) {
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

TEST_F(PackInputs, LinesAreCountedBehindAnInterruption) {
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

TEST_F(PackInputs, DocumentsAreTheBytesOfTheirFiles) {
  add("bom.jsonl", "\xef\xbb\xbf{\"text\":\"one\\r\\n\"}\r\n\r\n{\"text\":\"two\"}\r\n");
  add("bom.txt", "\xef\xbb\xbftext\n");
  add("crlf.txt", "one\r\ntwo\r\n");
  add("only_bom.jsonl", "\xef\xbb\xbf\n");
  add("deep.jsonl", R"({"text":"deep","more":)" + std::string(99, '[') + std::string(99, ']') + "}");
  pack(options());
  EXPECT_THAT(documents_in(options().output),
              ElementsAre("one\r\n", "two", "\xef\xbb\xbftext\n", "one\r\ntwo\r\n", "deep"));
}

TEST_F(PackInputs, NamesAndFirstLinesTellJsonLines) {
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  add("a.JSONL", lines);
  add("b.ndjson", lines);
  add("c.json", "\n" + lines);
  add("d.json", "{\"name\": \"x\"}\n");
  add("e.json", "{\n  \"text\": \"x\"\n}\n");
  add("f.json", "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n");
  add("g.txt", lines);
  add("i.json", "{\n  \"text\": 5\n}\n");
  add("j.json", "[{\"name\": \"x\"}]\n");
  std::vector<std::string> notes;
  PackOptions with = options();
  with.shard_tokens = 1;  // each document alone, so that each can be where a pack stops
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  pack(with);
  EXPECT_THAT(
      documents_in(with.output),
      ElementsAre("one", "two", "one", "two", "one", "two", "{\"name\": \"x\"}\n",
                  "{\n  \"text\": \"x\"\n}\n", "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n", lines,
                  "{\n  \"text\": 5\n}\n", "[{\"name\": \"x\"}]\n"));
  EXPECT_THAT(notes,
              ElementsAre(HasSubstr("c.json' is read as JSON lines"),
                          AllOf(HasSubstr("e.json' is a record over several lines"), HasSubstr("jq -c .")),
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

TEST_F(PackInputs, RecordsOverSeveralLinesAreNoticedByTheirFront) {
  std::vector<std::string> notes;
  PackOptions with = options();
  with.on_note = [&](const std::string& text) { notes.push_back(text); };
  add("a.json", "{\n  \"text\": \"" + std::string(1'500'000, 'x') + "\",\n  \"id\": 1\n}\n");
  add("b.json", "{\n  \"text\": \"one\"\n}\n{\n  \"text\": \"two\"\n}\n");
  add("c.json", "{\n  \"more\": {\"text\": \"one\"}\n}\n");
  EXPECT_EQ(pack(with).documents, 3);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("a.json' is a record over several lines"),
                                 HasSubstr("b.json' is a record over several lines")));
}

TEST_F(PackInputs, ExtensionsNeedNoDot) {
  add("a.txt", "text");
  add("b.md", "other");
  PackOptions with = options();
  with.extensions = {"txt"};
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text"));
  with.extensions = {".txt"};
  EXPECT_TRUE(pack(with).was_complete);
  add("c.TXT", "loud");
  with = options("out3");
  with.extensions = {"Txt"};
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text", "loud"));
  fs::remove(folder_.path() / "in/c.TXT");
  with = options("out2");
  with.extensions = {"text", "rst"};
  EXPECT_THAT(error_text([&] { pack(with); }),
              HasSubstr("no files with the extensions .text,.rst; there are .md (1), .txt (1)"));
}

/// Links out of the input, and back into it.
TEST_F(PackInputs, LinksInFoldersAreFollowedOnDemand) {
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

TEST_F(PackInputs, WhatIsNoFileIsPassedOverWithANote) {
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

TEST_F(PackInputs, UnreadableFoldersAreNamed) {
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

}  // namespace
}  // namespace annulus::data
