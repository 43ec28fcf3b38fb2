// What stands in the output folder of a pack: its manifest, its shards, and things of others.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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
using test::extend;
using test::shards_in;
using testing::AllOf;
using testing::HasSubstr;

using PackFolder = test::PackerTest;

TEST_F(PackFolder, ShardThatTheManifestDoesNotKnowYetIsWrittenAgain) {
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

TEST_F(PackFolder, MissingOrForeignShardsOfThePackAreErrors) {
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

TEST_F(PackFolder, FoldersWithOtherThingsAreErrors) {
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

TEST_F(PackFolder, UnwritableOutput) {
  add("a", "text");
  PackOptions with = options();
  with.output = folder_.write("file", "x");
  EXPECT_THAT(error_text([&] { pack(with); }),
              AllOf(HasSubstr(with.output.string()), HasSubstr("can be written")));
  with.output /= "sub";
  EXPECT_THAT(error_text([&] { pack(with); }), HasSubstr(with.output.string()));
}

TEST_F(PackFolder, OnlyItsOwnLeftoversAreRemoved) {
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

/// Manifests that others have changed: each is refused, none is followed.
TEST_F(PackFolder, DamagedManifestsAreRefused) {
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

TEST_F(PackFolder, LinksInThePlaceOfItsFilesAreRefused) {
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

}  // namespace
}  // namespace annulus::data
