#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json_lines.hpp"

namespace annulus::io {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::vector<int> steps_in(const std::string& file) {
  std::vector<int> steps;
  read_json_lines(file, [&](const json& record, std::int64_t) { steps.push_back(record.at("step")); });
  return steps;
}

using JsonLines = annulus::test::FolderTest;

TEST_F(JsonLines, ReadsWhatWasWritten) {
  JsonLinesWriter writer(folder_.file("m.jsonl"));
  writer.write({{"step", 1}, {"name", "ä"}});
  EXPECT_EQ(read_text(folder_.file("m.jsonl")),
            "{\"name\":\"ä\",\"step\":1}\n");  // on disk before the writer ends
  writer.write({{"step", 2}});
  EXPECT_THAT(steps_in(folder_.file("m.jsonl")), ElementsAre(1, 2));
}

TEST_F(JsonLines, AppendCutsATornLine) {
  const std::string long_torn = "{\"step\": 3, \"text\": \"" + std::string(10000, 'x');
  const std::string file = folder_.write("m.jsonl", "{\"step\": 1}\n{\"step\": 2}\n" + long_torn),
                    only_torn = folder_.write("torn.jsonl", "{\"st");
  EXPECT_THAT(steps_in(file), ElementsAre(1, 2));
  for (const std::string& name : {file, only_torn})
    JsonLinesWriter(name, JsonLinesWriter::Mode::append).write({{"step", 4}});
  EXPECT_THAT(steps_in(file), ElementsAre(1, 2, 4));
  EXPECT_EQ(read_text(only_torn), "{\"step\":4}\n");
  JsonLinesWriter(file).write({{"step", 9}});  // which starts anew
  EXPECT_THAT(steps_in(file), ElementsAre(9));
}

TEST_F(JsonLines, MovesLeaveOneOwner) {
  JsonLinesWriter first(folder_.file("m.jsonl"));
  JsonLinesWriter second(std::move(first));
  EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  second.write({{"step", 1}});
  JsonLinesWriter third;
  third = std::move(second);
  third.write({{"step", 2}});
  EXPECT_THAT(steps_in(folder_.file("m.jsonl")), ElementsAre(1, 2));
  EXPECT_NE(error_text([&] { first.write({}); }), "no error");
}

TEST_F(JsonLines, BadLineInTheMiddleIsNamed) {
  const std::string file = folder_.write("m.jsonl", "{\"step\": 1}\n\nnonsense\n{\"step\": 2}\n");
  EXPECT_THAT(error_text([&] { steps_in(file); }), mentions(file, "line 3"));
}

TEST_F(JsonLines, FilterKeepsWhatIsWanted) {
  const std::string file = folder_.write("m.jsonl", "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st");
  filter_json_lines(file, [](const json& record) { return record.at("step") <= 2; });
  EXPECT_EQ(read_text(file), "{\"step\": 1}\n{\"step\": 2}\n");  // as they were
  filter_json_lines(folder_.file("missing.jsonl"), [](const json&) { return true; });
}

TEST_F(JsonLines, FullDiskLeavesTheLastCompleteRecord) {
  const std::string file = folder_.file("m.jsonl");
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

TEST_F(JsonLines, UnwritablePathIsNamed) {
  const std::string path = "/no/such/folder/m.jsonl";
  EXPECT_THAT(error_text([&] { JsonLinesWriter{path}; }), mentions("'" + path + "'"));
}

TEST_F(JsonLines, ARecordOfAnotherFormIsNamed) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  deep += "1" + std::string(100000, '}');
  const auto early = [](const json& record) { return record.value("step", 0) <= 2; };
  for (const std::string& record :
       {std::string("[1]"), std::string("7"), std::string("{\"step\": \"two\"}"), deep}) {
    const std::string text = "{\"step\": 1}\n" + record + "\n", file = folder_.write("m.jsonl", text);
    EXPECT_THAT(error_text([&] { filter_json_lines(file, early); }), mentions(file, "line 2"));
    EXPECT_EQ(read_text(file), text);
  }
}

TEST_F(JsonLines, LinksAndPipesAreRefused) {
  const std::string target = folder_.write("target", "{\"step\": 1}\n"), link = folder_.file("link");
  std::filesystem::create_symlink(target, link);
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& name : {link, pipe}) {
    for (const auto mode : {JsonLinesWriter::Mode::append, JsonLinesWriter::Mode::create})
      EXPECT_THAT(error_text([&] { JsonLinesWriter(name, mode); }), mentions(name));
    EXPECT_THAT(error_text([&] { filter_json_lines(name, [](const json&) { return false; }); }),
                mentions(name));
  }
  EXPECT_EQ(read_text(target), "{\"step\": 1}\n");
}

}  // namespace
}  // namespace annulus::io
