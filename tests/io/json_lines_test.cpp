#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json_lines.hpp>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> steps_in(const std::string& file) {
  std::vector<int> steps;
  read_json_lines(file, [&](const json& record, std::int64_t) { steps.push_back(record.at("step")); });
  return steps;
}

TEST(JsonLines, ReadsWhatWasWritten) {
  const test::TemporaryFolder folder;
  JsonLinesWriter writer(folder.file("m.jsonl"));
  writer.write({{"step", 1}, {"name", "ä"}});
  EXPECT_EQ(read_text(folder.file("m.jsonl")),
            "{\"name\":\"ä\",\"step\":1}\n");  // on disk before the writer ends
  writer.write({{"step", 2}});
  EXPECT_THAT(steps_in(folder.file("m.jsonl")), ElementsAre(1, 2));
}

TEST(JsonLines, AppendCutsATornLine) {
  const test::TemporaryFolder folder;
  const std::string long_torn = "{\"step\": 3, \"text\": \"" + std::string(10000, 'x');
  const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n{\"step\": 2}\n" + long_torn);
  EXPECT_THAT(steps_in(file), ElementsAre(1, 2));
  JsonLinesWriter(file, JsonLinesWriter::Mode::append).write({{"step", 4}});
  EXPECT_THAT(steps_in(file), ElementsAre(1, 2, 4));
}

TEST(JsonLines, AppendToNothingButATornLine) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("m.jsonl", "{\"st");
  JsonLinesWriter(file, JsonLinesWriter::Mode::append).write({{"step", 4}});
  EXPECT_EQ(read_text(file), "{\"step\":4}\n");
}

TEST(JsonLines, CreateStartsAnew) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n");
  JsonLinesWriter(file).write({{"step", 9}});
  EXPECT_THAT(steps_in(file), ElementsAre(9));
}

TEST(JsonLines, MovesLeaveOneOwner) {
  const test::TemporaryFolder folder;
  JsonLinesWriter first(folder.file("m.jsonl"));
  JsonLinesWriter second(std::move(first));
  EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  second.write({{"step", 1}});
  JsonLinesWriter third;
  third = std::move(second);
  third.write({{"step", 2}});
  EXPECT_THAT(steps_in(folder.file("m.jsonl")), ElementsAre(1, 2));
  EXPECT_THAT(error_text([&] { first.write({}); }), HasSubstr("not open"));
}

TEST(JsonLines, BadLineInTheMiddleIsNamed) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n\nnonsense\n{\"step\": 2}\n");
  EXPECT_THAT(error_text([&] { steps_in(file); }), mentions(file, "line 3"));
}

TEST(JsonLines, FilterKeepsWhatIsWanted) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st");
  filter_json_lines(file, [](const json& record) { return record.at("step") <= 2; });
  EXPECT_EQ(read_text(file), "{\"step\": 1}\n{\"step\": 2}\n");  // as they were
  filter_json_lines(folder.file("missing.jsonl"), [](const json&) { return true; });
}

TEST(JsonLines, FullDiskLeavesTheLastCompleteRecord) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("m.jsonl");
  JsonLinesWriter writer(file);
  writer.write({{"step", 1}});
  {
    const test::FileSizeLimit limit(100);
    EXPECT_THAT(error_text([&] {
                  writer.write({{"step", 2}, {"text", std::string(200, 'x')}});
                }),
                mentions(file, "File too large"));
  }
  EXPECT_EQ(read_text(file), "{\"step\":1}\n");
  writer.write({{"step", 3}});
  EXPECT_THAT(steps_in(file), ElementsAre(1, 3));
}

TEST(JsonLines, UnwritablePathIsNamed) {
  EXPECT_THAT(error_text([] { JsonLinesWriter("/no/such/folder/m.jsonl"); }),
              HasSubstr("'/no/such/folder/m.jsonl'"));
}

TEST(JsonLines, ALineThatIsNestedWithoutEndIsNamed) {
  const test::TemporaryFolder folder;
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  deep += "1" + std::string(100000, '}');
  const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n" + deep + "\n");
  const auto all = [](const json&) { return true; };
  EXPECT_THAT(error_text([&] { filter_json_lines(file, all); }),
              mentions(file, "line 2", "nested more than"));
  EXPECT_EQ(read_text(file), "{\"step\": 1}\n" + deep + "\n");
}

TEST(JsonLines, ARecordOfAnotherFormIsNamed) {
  const test::TemporaryFolder folder;
  const auto early = [](const json& record) { return record.value("step", 0) <= 2; };
  for (const char* record : {"[1]", "7", "{\"step\": \"two\"}"}) {
    const std::string file = folder.write("m.jsonl", "{\"step\": 1}\n" + std::string(record) + "\n");
    EXPECT_THAT(error_text([&] { filter_json_lines(file, early); }), mentions(file, "line 2", "other JSON"));
  }
}

TEST(JsonLines, LinksAndPipesAreRefused) {
  const test::TemporaryFolder folder;
  const std::string target = folder.write("target", "{\"step\": 1}\n"), link = folder.file("link");
  std::filesystem::create_symlink(target, link);
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& name : {link, pipe}) {
    const char* why = name == link ? "is a symbolic link" : "no regular file";
    for (const auto mode : {JsonLinesWriter::Mode::append, JsonLinesWriter::Mode::create})
      EXPECT_THAT(error_text([&] { JsonLinesWriter(name, mode); }), mentions(name, why));
    EXPECT_THAT(error_text([&] { filter_json_lines(name, [](const json&) { return false; }); }),
                mentions(name, why));
  }
  EXPECT_EQ(read_text(target), "{\"step\": 1}\n");
}

}  // namespace
}  // namespace annulus::io
