// What is a document, and which files and lines are.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "training/data/packing/packer.hpp"

namespace annulus::data {
namespace {

using PackInputs = PackerTest;

/// Lines that are no records, from what users had, and what of it is named.
std::vector<std::pair<std::string, const char*>> bad_lines() {
  const auto nested = [](std::size_t depth) {
    return R"({"text": "a", "more": )" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  return {{R"({"text":"a","score":NaN})", "NaN at byte 21"},
          {R"({"text":"a","score":-Infinity})", "Infinity at byte 22"},
          {R"({"text":"half \ud83d emoji"})", "U+D800..U+DBFF"},
          {R"({"text":"a","other":"\udc00"})", "U+DC00..U+DFFF"},
          {"{\"text\":\"Gr\xfc\xdf"
           "e\"}",
           "byte 12"},
          {R"({"text":null})", "\"text\" is null"},
          {R"({"text":["a"]})", "\"text\" is an array"},
          {R"({"text":"a","text":{"text":"b"}})", "\"text\" is an object"},
          {R"({"more":{"text":"b"}})", "\"text\""},
          {R"([{"text":"a"}])", "JSON object"},
          {R"("text")", "JSON object"},
          {R"({"text":"a"} {"text":"b"})", "byte 14"},
          {R"({"text":"a)", "quote"},
          {R"({"text":"a",)", "ends"},
          {R"({"text":"a","number":1e999})", "number"},
          {nested(100), "100"},
          {std::string(1'000'000, '['), "100"},
          {std::string(100'000, '\0'), "byte 1"},
          {std::string("{\"text\":\"a\"}") + '\0', "byte 13"}};
}

TEST_F(PackInputs, BadLinesAreNamedWithTheirCauseAndCanBeSkipped) {
  for (const auto& [line, cause] : bad_lines()) {
    const std::string path = add("a.jsonl", "{\"text\":\"good\"}\n\n" + line + "\n{\"text\":\"after\"}\n");
    PackOptions with = options();
    const std::string error = pack_error(with);
    EXPECT_THAT(error, mentions("'" + path + "', line 3: ", cause, "--bad-lines skip"));
    EXPECT_LT(error.size(), 600u);  // the line itself may be anything
    with.bad_lines = BadLines::skip;
    notes_.clear();
    EXPECT_EQ(pack(with).skipped_lines, 1) << cause;  // goes on in the same folder
    EXPECT_THAT(documents_in(with.output), ElementsAre("good", "after"));
    EXPECT_THAT(notes_, ElementsAre(mentions("a.jsonl', line 3", cause)));
    fs::remove_all(with.output);
  }
}

TEST_F(PackInputs, LinesAreCountedBehindAnInterruption) {
  const std::string good = "{\"text\": \"ten bytes.\"}\n\n";
  add("a.jsonl", good + good + good + "{}\n" + good + "{\n");
  PackOptions with = options();
  with.shard_tokens = 12;
  for (int again = 0; again < 2; ++again) EXPECT_THAT(pack_error(with), mentions("line 7: "));
  with.bad_lines = BadLines::skip;
  const PackSummary summary = pack(with);
  EXPECT_EQ(summary.resumed_shards, 2);
  EXPECT_EQ(summary.skipped_lines, 2);
  EXPECT_THAT(notes_, ElementsAre(mentions("line 7 "), mentions("line 10 ")));
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
  const std::vector<std::string> wholes = {"{\"name\": \"x\"}\n",
                                           "{\n  \"text\": \"x\"\n}\n",
                                           "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n",
                                           lines,
                                           "{\n  \"text\": 5\n}\n",
                                           "[{\"name\": \"x\"}]\n"};
  const char* const names[] = {"d.json", "e.json", "f.json", "g.txt", "i.json", "j.json"};
  for (std::size_t i = 0; i < wholes.size(); ++i) add(names[i], wholes[i]);
  std::vector<std::string> documents = {"one", "two", "one", "two", "one", "two"};
  documents.insert(documents.end(), wholes.begin(), wholes.end());
  PackOptions with = options();
  with.shard_tokens = 1;  // each document alone, so that each can be where a pack stops
  pack(with);
  EXPECT_EQ(documents_in(with.output), documents);
  EXPECT_THAT(notes_, ElementsAre(mentions("c.json'"), mentions("e.json'"), mentions("f.json'")));
  const auto expected = test::shards_in(with.output);
  for (int stop = 0; stop < 9; ++stop) {
    with.output = folder_.path() / ("stopped" + std::to_string(stop));
    pack_until(with, stop);
    pack(with);
    EXPECT_EQ(test::shards_in(with.output), expected) << stop;
  }
}

TEST_F(PackInputs, RecordsOverSeveralLinesAreNoticedByTheirFront) {
  add("a.json", "{\n  \"text\": \"" + std::string(1'500'000, 'x') + "\",\n  \"id\": 1\n}\n");
  add("b.json", "{\n  \"text\": \"one\"\n}\n{\n  \"text\": \"two\"\n}\n");
  add("c.json", "{\n  \"more\": {\"text\": \"one\"}\n}\n");
  EXPECT_EQ(pack(options()).documents, 3);
  EXPECT_THAT(notes_, ElementsAre(mentions("a.json'"), mentions("b.json'")));
}

/// Answers as a process that reads Parquet files: with the bytes of a file as they are, five at a time, and
/// an error in place of an 'X'.
class ParquetReader {
 public:
  ParquetReader() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    thread_ = std::thread([this] { answer(); });
  }
  ~ParquetReader() {
    close(ends_[0]);
    thread_.join();
    close(ends_[1]);
  }
  ParquetReader(const ParquetReader&) = delete;
  ParquetReader& operator=(const ParquetReader&) = delete;

  int socket() const { return ends_[0]; }

 private:
  void answer() const {
    std::string left;
    for (std::uint64_t size = 0; recv(ends_[1], &size, sizeof(size), MSG_WAITALL) > 0;) {
      std::string path(size, ' ');
      if (size > 0) {
        EXPECT_EQ(recv(ends_[1], path.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
        left = io::read_text(path);
        continue;
      }
      std::string piece = left.substr(0, 5);
      left.erase(0, 5);
      const bool failed = piece.starts_with('X');
      if (failed) piece = "group 2 is damaged";
      const std::array<std::uint64_t, 3> head{failed, left.size(), piece.size()};
      EXPECT_GT(send(ends_[1], head.data(), sizeof(head), 0), 0);
      EXPECT_GE(send(ends_[1], piece.data(), piece.size(), 0), 0);
    }
  }

  std::array<int, 2> ends_{};
  std::thread thread_;
};

TEST_F(PackInputs, AnotherProcessReadsParquet) {
  const std::string one = "{\"text\":\"one\"}\n", null = "{\"text\":null}\n",
                    three = "{\"text\":\"three\"}\n";
  const std::string path = add("a.parquet", one + null + three);
  add("b.PARQUET", one);
  add("c.txt", "text");
  PackOptions with = options();
  EXPECT_THAT(pack_error(with), mentions("is a Parquet file", "pack_tokenizer_json.py", "--extensions"));
  EXPECT_FALSE(fs::exists(with.output));
  const ParquetReader reader;
  with.parquet_reader = reader.socket();
  with.shard_tokens = 4;
  EXPECT_THAT(pack_error(with), mentions("'" + path + "', row 2: ", "\"text\" is null"));
  with.bad_lines = BadLines::skip;
  pack_until(with, 1);
  std::vector<std::int64_t> read;
  with.on_read = [&](std::int64_t bytes, std::int64_t) { read.push_back(bytes); };
  EXPECT_EQ(pack(with).resumed_shards, 2);  // finds its place in the rows of a.parquet, and goes on
  EXPECT_THAT(documents_in(with.output), ElementsAre("one", "three", "one", "text"));
  EXPECT_TRUE(std::ranges::is_sorted(read));

  add("a.parquet", one + null + three + "    X");
  with.output = folder_.path() / "damaged";
  EXPECT_THAT(pack_error(with), mentions("group 2 is damaged"));
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
  EXPECT_THAT(pack_error(with), mentions(".text,.rst", ".md (1), .txt (1)"));
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
  PackOptions with = options();
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text"));
  EXPECT_THAT(notes_, ElementsAre(mentions("3 links", "--follow-links")));

  notes_.clear();
  with.output = folder_.path() / "followed";
  with.follow_links = true;
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("text", "secret", "elsewhere"));
  EXPECT_THAT(notes_,
              testing::UnorderedElementsAre(mentions("in/more/below/back'"), mentions("in/dangling'")));
  with.output = folder_.path() / "elsewhere/below/out";
  EXPECT_THAT(pack_error(with), mentions("elsewhere/below/out"));

  fs::remove(folder_.path() / "in/a.txt");
  with = options("none");
  EXPECT_THAT(pack_error(with), mentions("--follow-links"));
  with.inputs = {folder_.path() / "in/link.txt", folder_.path() / "in/more"};  // named, so meant
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("secret", "elsewhere"));
}

TEST_F(PackInputs, WhatIsNoFileIsPassedOverWithANote) {
  add("a.txt", "text");
  ASSERT_EQ(::mkfifo((folder_.path() / "in/pipe.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(pack(options()).documents, 1);
  EXPECT_THAT(notes_, ElementsAre(mentions("pipe.jsonl")));
  PackOptions with = options("other");
  with.inputs = {folder_.path() / "in/pipe.jsonl"};
  EXPECT_THAT(pack_error(with), mentions("pipe.jsonl"));
}

TEST_F(PackInputs, UnreadableFoldersAreNamed) {
  add("a.txt", "text");
  add("closed/b.txt", "text");
  const fs::path closed = folder_.path() / "in/closed";
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(closed, fs::perms::none);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "root may read everything";
  const std::string error = pack_error(options());
  ASSERT_EQ(::seteuid(user), 0);
  fs::permissions(closed, fs::perms::owner_all);
  EXPECT_THAT(error, mentions("'" + closed.string() + "'", "Permission denied"));
}

}  // namespace
}  // namespace annulus::data
