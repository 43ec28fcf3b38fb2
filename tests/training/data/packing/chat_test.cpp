#include <zlib.h>

#include "training/data/packing/chat_template.hpp"
#include "training/data/packing/packer.hpp"

namespace annulus::data {
namespace {

using test::shards_in;

constexpr const char* chat = R"({
  "start": "^",
  "roles": {
    "system": {"before": "S:", "after": "\n"},
    "user": {"before": "U:", "after": "\n"},
    "assistant": {"before": "A:", "after": "\n", "counts": true}
  }
})";

/// The contents as one member of a gzip file.
std::string packed(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class ChatTest : public PackerTest {
 protected:
  PackOptions chats(const std::string& output = "out") {
    PackOptions with = options(output);
    with.chat_template = folder_.write("chat.json", chat);
    return with;
  }
  /// The documents as texts in which [ ] stand around what counts, | for the end.
  std::vector<std::string> counted(const fs::path& folder) const {
    std::vector<std::string> texts;
    for (const auto& path : find_shards(std::span(&folder, 1))) {
      const TokenShard shard = TokenShard::open(path);
      verify_shard(shard);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.header().tokens));
      std::vector<std::uint8_t> mask(ids.size());
      shard.read(0, ids);
      shard.read_loss_mask(0, std::ssize(ids), 1, std::ssize(ids), mask);
      std::string text;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool end = ids[i] == 256;
        if (mask[i] == 1 && (i == 0 || mask[i - 1] == 0 || ids[i - 1] == 256)) text += '[';
        text += end ? '|' : static_cast<char>(ids[i]);
        if (mask[i] == 1 && (end || mask[i + 1] == 0)) text += ']';
        if (end) texts.push_back(std::exchange(text, ""));
      }
    }
    return texts;
  }
};

TEST_F(ChatTest, CountsWhatTheTemplateSays) {
  add("a.jsonl",
      "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": "
      "\"hi\"}, "
      "{\"role\": \"assistant\", \"content\": \"ho\"}, {\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
      "\"assistant\", \"content\": \"y\", \"weight\": 3}], \"id\": 7}\n\n"
      "{\"messages\": []}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"alone\"}]}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}\n");
  const PackSummary summary = pack(chats());
  EXPECT_THAT(counted(options().output),
              ElementsAre("^S:be\nU:hi\nA:[ho\n]U:x\nA:[y\n|]", "^U:alone\n|", "^A:[\n|]"));
  EXPECT_EQ(summary.skipped_empty, 1);
  EXPECT_EQ(TokenShard::open(options().output / "tokens-000000.h5").sum_loss_mask().counted, 3 + 3 + 2);
}

TEST_F(ChatTest, KeysOfRecordsAreTheTemplates) {
  PackOptions with = options();
  with.chat_template =
      folder_.write("gpt.json", R"({"messages": "conversations", "role": "from", "content": "value",
                                    "roles": {"human": {"after": "?"}, "gpt": {"counts": true}}})");
  add("a.ndjson",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": "
      "\"b\"}]}\n");
  pack(with);
  EXPECT_THAT(counted(with.output), ElementsAre("a?[b|]"));
}

TEST_F(ChatTest, ShardsOfConversationsAreClosedAndResumedAsOthers) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, {{\"role\": \"assistant\", "
        "\"content\": \"{}\"}}]}}\n",
        std::string(static_cast<std::size_t>(i % 7), 'q'), std::string(static_cast<std::size_t>(i % 5), 'a'));
  add("a.jsonl", lines);
  PackOptions with = chats();
  with.shard_tokens = 100;
  pack(with);
  const auto expected = shards_in(with.output);
  ASSERT_GT(expected.size(), 4u);
  with.output = folder_.path() / "again";
  pack_until(with, 2);
  pack(with);
  EXPECT_EQ(shards_in(with.output), expected);
  // Another template is another argument.
  with.chat_template =
      folder_.write("other.json", R"({"roles": {"user": {"counts": true}, "assistant": {}}})");
  EXPECT_THAT(pack_error(with), mentions("settings of the tokenizer", "chat template crc32:"));
}

TEST_F(ChatTest, BadRecordsNameLineAndCause) {
  const struct {
    std::string line, cause;
  } cases[] = {
      {"{\"text\": \"a\"}", "no array \"messages\""},
      {"{\"messages\": 3}", "no array \"messages\""},
      {"{\"messages\": [3]}", "message 1 has no string \"role\""},
      {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "message 1 has no string \"content\""},
      {"{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}",
       "has the role \"tool\"; those of the chat template are assistant, system, user"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}", "message 1 has a NUL"},
      {"[1]", "no JSON object"},
      {"{\"messages\": [", "no JSON from byte"},
  };
  for (const auto& [line, cause] : cases) {
    add("a.jsonl", "\n" + line + "\n{\"messages\": [{\"role\": \"assistant\", \"content\": \"ok\"}]}");
    PackOptions with = chats();
    EXPECT_THAT(pack_error(with), mentions("a.jsonl', line 2", cause, "--bad-lines skip"));
    with.bad_lines = BadLines::skip;
    EXPECT_EQ(pack(with).skipped_lines, 1);
    EXPECT_THAT(counted(with.output), ElementsAre("^A:[ok\n|]"));
    fs::remove_all(with.output);
  }
  add("b.txt", "a text");
  EXPECT_THAT(pack_error(chats()), mentions("b.txt", "JSON lines", "--extensions jsonl"));
}

TEST_F(ChatTest, BadTemplatesNameTheRemedy) {
  const struct {
    std::string text, named;
  } cases[] = {
      {"[]", "no JSON object"},
      {"{}", "has no \"roles\""},
      {"{\"roles\": {}}", "has no \"roles\""},
      {"{\"roles\": {\"user\": {}}}", "no role with \"counts\": true"},
      {"{\"roles\": {\"user\": \"a\"}}", "role \"user\": \"a\" is no object"},
      {"{\"roles\": {\"user\": {\"counts\": 1}}}", "role \"user\": \"counts\" is 1: give true or false"},
      {"{\"roles\": {\"user\": {\"prefix\": \"\"}}}",
       "\"prefix\" is unknown: known are before, after, counts"},
      {"{\"start\": 1, \"roles\": {\"user\": {\"counts\": true}}}", "\"start\" is 1: give a string"},
      {"{\"bos\": \"\", \"roles\": {\"user\": {\"counts\": true}}}", "\"bos\" is unknown"},
  };
  for (const auto& [text, named] : cases)
    EXPECT_THAT(error_text([&] { ChatTemplate::parse(text, "t.json"); }), mentions("t.json", named)) << text;
  PackOptions with = chats();
  with.chat_template = folder_.path() / "none.json";
  EXPECT_THAT(pack_error(with), mentions("none.json"));
}

TEST_F(PackerTest, GzipIsReadAsWhatIsInIt) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += fmt::format("{{\"text\": \"record {} {}\"}}\n", i,
                         std::string(static_cast<std::size_t>(i % 700), 'x'));
  add("b.jsonl", lines);
  PackOptions with = options();
  with.shard_tokens = 100000;
  pack(with);
  const auto expected = shards_in(with.output);
  ASSERT_GT(expected.size(), 5u);
  fs::remove(folder_.path() / "in/b.jsonl");
  // Two members, cut inside of a line.
  add("b.JSONL.gz", packed(lines.substr(0, 4321)) + packed(lines.substr(4321)));
  with.output = folder_.path() / "whole";
  pack(with);
  EXPECT_EQ(shards_in(with.output), expected);
  with.output = folder_.path() / "resumed";
  pack_until(with, 3);
  pack(with);
  EXPECT_EQ(shards_in(with.output), expected);
  EXPECT_TRUE(pack(with).was_complete);
}

TEST_F(PackerTest, DamagedGzipIsNamed) {
  const std::string whole = packed("{\"text\": \"a record\"}\n");
  for (const std::string& bad :
       {std::string("{\"text\": \"not packed\"}\n"), whole.substr(0, whole.size() - 5),
        std::string(whole).replace(whole.size() - 6, 1, "?")}) {
    add("a.jsonl.gz", bad);
    PackOptions with = options();
    EXPECT_THAT(pack_error(with), mentions("a.jsonl.gz", "gzip"));
    EXPECT_FALSE(fs::exists(with.output / "tokens-000000.h5"));
    fs::remove_all(with.output);
  }
  add("a.jsonl.gz", whole);
  add("b.txt.gz", packed("no records"));
  EXPECT_EQ(pack(options()).skipped_binary, 1) << "files of other names are documents as they are";
}

TEST_F(PackerTest, ShardsDoNotDependOnTheThreads) {
  add_many();
  std::string lines;
  for (int i = 0; i < 4000; ++i)
    lines += fmt::format("{{\"text\": \"record {} {}\"}}\n", i,
                         std::string(static_cast<std::size_t>(i % 300), 'x'));
  add("c.jsonl", lines);
  for (const char* name : {"e.txt", "f.txt"}) {  // longer than a part
    std::string text;
    while (text.size() < (std::size_t{7} << 19))
      text += fmt::format("{} words of a long text {}\n", text.size(), name);
    add(name, text);
  }
  add("g.jsonl", lines + "no record\n" + lines);
  PackOptions with = options();
  with.shard_tokens = 500000;
  with.bad_lines = BadLines::skip;
  with.threads = 1;
  const PackSummary one = pack(with);
  const auto expected = shards_in(with.output);
  const std::vector<std::string> notes = std::exchange(notes_, {});
  for (const int threads : {2, 3, 8}) {
    with.threads = threads;
    with.output = folder_.path() / fmt::format("{} threads", threads);
    const PackSummary summary = pack(with);
    EXPECT_TRUE(shards_in(with.output) == expected);
    EXPECT_EQ(summary.skipped_lines, 1);
    EXPECT_EQ(summary.unigram_entropy, one.unigram_entropy);
    EXPECT_EQ(std::exchange(notes_, {}), notes);
    with.output = folder_.path() / fmt::format("{} resumed", threads);
    pack_until(with, 4);
    with.threads = 1;
    pack(with);
    EXPECT_TRUE(shards_in(with.output) == expected);
    notes_.clear();
  }
  // The first bad line ends the pack, whichever thread is first.
  with = options("bad");
  with.threads = 8;
  EXPECT_THAT(pack_error(with), mentions("g.jsonl', line 4001"));
  with.threads = -1;
  EXPECT_THAT(pack_error(with), mentions("--threads is -1"));
}

}  // namespace
}  // namespace annulus::data
