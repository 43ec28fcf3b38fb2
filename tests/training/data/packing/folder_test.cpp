// What stands in the output folder of a pack: its manifest, its shards, and things of others.
#include <nlohmann/json.hpp>

#include "training/data/packing/packer.hpp"

namespace annulus::data {
namespace {

using PackFolder = PackerTest;

TEST_F(PackFolder, ShardThatTheManifestDoesNotKnowYetIsWrittenAgain) {
  add_many();
  PackOptions with = options();
  with.shard_tokens = 50;
  pack(with);
  const auto expected = test::shards_in(with.output);
  with.output = folder_.path() / "killed";
  pack_until(with, 2);
  const std::string manifest = io::read_text(with.output / "pack.json");
  pack_until(with, 3);
  io::write_text_atomically(with.output / "pack.json", manifest);  // as if killed between shard and manifest
  EXPECT_EQ(pack(with).resumed_shards, 3);
  EXPECT_EQ(test::shards_in(with.output), expected);
}

TEST_F(PackFolder, MissingOrForeignShardsOfThePackAreErrors) {
  add("a", "text");
  pack(options());
  const fs::path shard = options().output / "tokens-000000.h5";
  fs::rename(shard, folder_.path() / "elsewhere.h5");
  EXPECT_THAT(pack_error(options()), mentions(shard.string()));
  const std::vector<std::int32_t> tokens{1, 2};
  const std::vector<std::int64_t> documents{0};
  write_shard(shard, *make_byte_tokenizer(), tokens, documents);
  EXPECT_THAT(pack_error(options()), mentions(shard.string(), "pack.json"));
}

TEST_F(PackFolder, FoldersWithOtherThingsAreErrors) {
  add("a", "text");
  const fs::path output = options().output;
  fs::create_directories(output);
  std::ofstream(output / "mine.h5") << "x";
  EXPECT_THAT(pack_error(options()), mentions("'mine.h5'", output.string()));
  for (const char* text : {R"({"format": "other"})", R"({"format": "annulus-pack", "version": 9})",
                           R"({"format": "annulus-pack", "version": 2})"}) {
    std::ofstream(output / "pack.json") << text;
    EXPECT_THAT(pack_error(options()), mentions((output / "pack.json").string())) << text;
  }
}

TEST_F(PackFolder, UnwritableOutput) {
  add("a", "text");
  PackOptions with = options();
  for (const fs::path& output : {fs::path(folder_.write("file", "x")), folder_.path() / "file/sub"}) {
    with.output = output;
    EXPECT_THAT(pack_error(with), mentions(output.string()));
  }
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
  using nlohmann::json;
  add("a.jsonl", "{\"text\": \"first of all\"}\n{\"text\": \"second\"}\n{}\n");
  PackOptions with = options();
  with.shard_tokens = 13;
  EXPECT_THAT(pack_error(with), mentions("line 3"));
  const fs::path path = with.output / "pack.json";
  const json sound = json::parse(io::read_text(path));
  ASSERT_EQ(sound["next"]["file"], 0);
  const auto refused = [&](const char* pointer, const json& value) {
    json changed = sound;
    changed[json::json_pointer(pointer)] = value;
    std::ofstream(path) << changed;
    EXPECT_THAT(pack_error(with), mentions(path.string())) << pointer << " " << value;
  };
  for (const char* number :
       {"/next/file", "/next/offset", "/next/checksum", "/skipped/binary", "/skipped/empty", "/skipped/lines",
        "/arguments/shard_tokens", "/arguments/tokenizer/vocabulary", "/shards/0/tokens",
        "/shards/0/documents", "/shards/0/checksum"})
    for (const json& value :
         {json(-1), json(1e300), json("x"), json(), json(true), json(18446744073709551615u)})
      refused(number, value);
  for (const auto& [pointer, value] : {std::pair<const char*, json>{"/shards/0/file", "../tokens-000000.h5"},
                                       {"/shards/0/file", "tokens-000001.h5"},
                                       {"/shards", json::object()},
                                       {"/arguments", 1},
                                       {"/arguments/extensions", json::array({1})},
                                       {"/arguments/tokenizer/name", 1},
                                       {"/complete", 1},
                                       {"/unigram_entropy", "x"},
                                       {"/format", 5},
                                       {"/version", "2"}})
    refused(pointer, value);
  std::ofstream(path) << std::string(1'000'000, '[');
  EXPECT_THAT(pack_error(with), mentions(path.string()));
  std::ofstream(path) << "";
  extend(path, std::uintmax_t{3} << 30);
  EXPECT_THAT(pack_error(with), mentions(path.string()));
  std::ofstream(path) << sound;
  with.bad_lines = BadLines::skip;
  EXPECT_EQ(pack(with).resumed_shards, 1);
}

TEST_F(PackFolder, LinksInThePlaceOfItsFilesAreRefused) {
  add("a.txt", "some text");
  const std::string victim = folder_.write("victim", "precious");
  for (const char* name : {"tokens-000000.h5", "pack.json"}) {
    const PackOptions with = options(fmt::format("out-{}", name));
    fs::create_directory(with.output);
    fs::create_symlink(victim, with.output / name);
    EXPECT_THAT(pack_error(with), mentions(name));
    EXPECT_EQ(io::read_text(victim), "precious");
  }
}

}  // namespace
}  // namespace annulus::data
