// apps/tokens/pack_tokenizer_json.py with the Python package tokenizers itself.
#include "training/data/tokenizer_json.hpp"

namespace annulus::data {
namespace {

TEST_F(TokenizerJson, DocumentsAreThoseOfTheProgram) {
  add("a.jsonl", "\xef\xbb\xbf{\"text\":\"one\"}\r\n\r\n{\"text\":\"two\"}\r\n");
  add("b.txt", "x\r\ny");
  add("c.txt", "\xef\xbb\xbfz");
  add("d.txt", "Gr\xfc\xdf");
  add("e.txt", "");
  add("sub/f.JSONL", "{\"text\":\"three\"}");
  add("sub/g.md", "no");
  const std::string arguments = "out in --extensions txt,.jsonl,JSONL";
  const std::string result = output_of(pack("plain.json", arguments));
  EXPECT_THAT(documents_in("out"),
              ElementsAre("one<256>", "two<256>", "xčĊy<256>", "ï»¿z<256>", "three<256>"));
  EXPECT_THAT(result, mentions("d.txt'", "byte 3", "1 binary or not UTF-8, 1 empty, 0 bad lines"));
  EXPECT_THAT(pack("plain.json", arguments).output, mentions("packed already"));

  const TokenShard shard = TokenShard::open(folder_.path() / "out/tokens-000000.h5");
  EXPECT_EQ(shard.header().tokenizer.name, "tokenizer.json");
  EXPECT_EQ(shard.header().tokenizer.vocabulary, 259);
  EXPECT_EQ(shard.header().tokenizer.end_of_document, 256);
  EXPECT_EQ(shard.header().tokenizer.fingerprint,
            fingerprint_of_model(io::read_text(folder_.file("plain.json"))));
  EXPECT_EQ(io::File::open(folder_.file("out/tokens-000000.h5")).dataset("tokenizer_model").elements(),
            fs::file_size(folder_.path() / "plain.json"));
}

TEST_F(TokenizerJson, BadLinesEndItOrAreSkippedAndItGoesOn) {
  add("a.jsonl",
      "{\"text\":\"first\"}\n{\"text\":\"half \\ud83d emoji\"}\n{\"text\":null}\n{\"text\":\"last\"}\n");
  const std::string ended = output_of(pack("plain.json", "--shard-tokens 6 out in"), 1);
  EXPECT_THAT(ended, mentions("a.jsonl', line 2: "));
  EXPECT_THAT(ended, testing::Not(mentions("Traceback")));
  const std::string skipped = output_of(pack("plain.json", "--shard-tokens 6 --bad-lines skip out in"));
  EXPECT_THAT(documents_in("out"), ElementsAre("first<256>", "last<256>"));
  EXPECT_THAT(skipped, mentions("line 3 ", "\"text\" is null", "2 bad lines"));
}

TEST_F(TokenizerJson, GoesOnBehindItsLastShard) {
  add("a.jsonl", "{\"text\":\"first\"}\n{\"text\":\"second\"}\n{}\n");
  EXPECT_EQ(pack("plain.json", "--shard-tokens 6 out in").status, 1);
  const auto when = fs::last_write_time(folder_.path() / "out/tokens-000000.h5");
  add("a.jsonl", "{\"text\":\"first\"}\n{\"text\":\"second\"}\n{\"text\":\"third\"}\n");
  EXPECT_THAT(output_of(pack("plain.json", "--shard-tokens 6 --bos '<|bos|>' out in"), 1),
              mentions("settings of the tokenizer"));
  output_of(pack("plain.json", "--shard-tokens 6 out in"));
  EXPECT_EQ(fs::last_write_time(folder_.path() / "out/tokens-000000.h5"), when);
  EXPECT_THAT(documents_in("out"), ElementsAre("first<256>", "second<256>", "third<256>"));
}

TEST_F(TokenizerJson, ShardsDoNotDependOnTheProcesses) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += fmt::format("{{\"text\":\"record {} {}\"}}\n", i,
                         std::string(static_cast<std::size_t>(i % 800), 'x'));
  add("a.jsonl", lines);
  std::map<std::string, std::string> one;
  for (const int processes : {1, 3}) {
    const std::string out = fmt::format("out{}", processes);
    output_of(pack("bos.json", fmt::format("--processes {} --shard-tokens 100000 {} in", processes, out)));
    auto shards = test::shards_in(folder_.path() / out);
    EXPECT_GT(shards.size(), 5u);
    if (one.empty())
      one = std::move(shards);
    else
      EXPECT_TRUE(shards == one);
  }
  EXPECT_THAT(pack("bos.json", "--processes -1 out in").output, mentions("--processes -1"));
}

// Marks are tokens, what stands in front of a text is there once, and the mask says what counts.
TEST_F(TokenizerJson, ConversationsHaveTheFrontOnce) {
  add("a.jsonl",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"ab\"}]}\n");
  folder_.write(
      "chat.json",
      R"({"roles": {"user": {"before": "<tool>"}, "assistant": {"before": "<tool>", "counts": true}}})");
  output_of(pack("bos.json", "--special-tokens token --chat-template chat.json out in"));
  EXPECT_THAT(documents_in("out"), ElementsAre("<257><258>q<258>ab<256>"));
  const TokenShard shard = TokenShard::open(folder_.path() / "out/tokens-000000.h5");
  std::vector<std::uint8_t> mask(7);
  shard.read_loss_mask(0, 7, 1, 7, mask);
  EXPECT_THAT(mask, ElementsAre(0, 0, 0, 0, 1, 1, 1));
}

TEST_F(TokenizerJson, TextThatSpellsASpecialTokenStaysText) {
  add("a.txt", "a<|endoftext|>b<|bos|><tool>");
  ASSERT_EQ(pack("plain.json", "out in").status, 0);
  EXPECT_THAT(documents_in("out"), ElementsAre("a<|endoftext|>b<|bos|><258><256>"));
  ASSERT_EQ(pack("plain.json", "token in --special-tokens token").status, 0);
  EXPECT_THAT(documents_in("token"), ElementsAre("a<256>b<257><258><256>"));
}

TEST_F(TokenizerJson, ASpecialTokenThatTheModelMakesOfTextIsNamed) {
  add("a.txt", "a b </s>");
  EXPECT_THAT(output_of(pack("words.json", "out in", "</s>"), 1), mentions("a.txt'", "'</s>'"));
  add("a.txt", "a b");  // b is unknown
  EXPECT_EQ(pack("words.json", "out in", "</s>").status, 0);
}

TEST_F(TokenizerJson, DocumentsStartAsTheTokenizerHasIt) {
  add("a.txt", "a");
  const ShellResult automatic = pack("bos.json", "auto in"), none = pack("bos.json", "none in --bos none"),
                    plain = pack("plain.json", "plain in"),
                    named = pack("plain.json", "named in --bos '<|bos|>'");
  EXPECT_THAT(documents_in("auto"), ElementsAre("<257>a<256>"));
  EXPECT_THAT(automatic.output, mentions("'<|bos|>' (257)"));
  EXPECT_THAT(documents_in("none"), ElementsAre("a<256>"));
  EXPECT_THAT(documents_in("plain"), ElementsAre("a<256>"));
  EXPECT_THAT(documents_in("named"), ElementsAre("<257>a<256>"));
}

TEST_F(TokenizerJson, WhatIsWrongIsSaidWithoutATraceback) {
  add("a.txt", "a");
  folder_.write("other.json", "{}");
  folder_.write("latin1.json", "\xff");
  for (const auto& [tokenizer, end, arguments, expected] :
       {std::array<std::string, 4>{"none.json", "</s>", "out in", "'none.json'"},
        {"other.json", "</s>", "out in", "'other.json'"},
        {"latin1.json", "</s>", "out in", "'latin1.json'"},
        {"plain.json", "</s>", "out in", "'</s>'"},
        {"plain.json", "<|bos|>", "out in --bos '<s>'", "'<s>'"},
        {"plain.json", "<|bos|>", "out missing", "'missing'"},
        {"plain.json", "<|bos|>", "out in --extensions md", ".txt (1)"}}) {
    const std::string result = output_of(pack(tokenizer, arguments, end), 1);
    EXPECT_THAT(result, mentions(expected));
    EXPECT_THAT(result, testing::Not(mentions("Traceback")));
    EXPECT_FALSE(fs::exists(folder_.path() / "out"));
  }
}

}  // namespace
}  // namespace annulus::data
