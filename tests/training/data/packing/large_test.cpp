// Files, lines and documents that are large.
#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "training/data/packing/packer.hpp"
#include "training/data/shard_tokens.hpp"

namespace annulus::data {
namespace {

using PackLarge = PackerTest;

std::int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * std::int64_t{1024};
}

TEST_F(PackLarge, LargeFilesAreNotReadWhole) {
  const std::int64_t before = peak_memory();
  add("a.txt", "text");
  extend(add("b.bin", ""), std::uintmax_t{3} << 30);
  extend(add("c.txt", std::string(100, 'x') + "\xff"), std::uintmax_t{3} << 30);
  extend(add("d.json", "{\n"), std::uintmax_t{3} << 30);
  EXPECT_EQ(pack(options()).skipped_binary, 3);
  extend(add("e.jsonl", ""), std::uintmax_t{3} << 30);
  EXPECT_THAT(pack_error(options("out2")), mentions("e.jsonl', line 1", "byte 1"));
  EXPECT_LT(peak_memory() - before, std::int64_t{600} << 20);
}

/// Ids are those of bytes; texts are cut behind full stops, if at all. Remembers what it was given.
class Stops final : public Tokenizer {
 public:
  explicit Stops(bool cuts) : cuts_(cuts) {}
  const TokenizerIdentity& identity() const override { return bytes_->identity(); }
  std::span<const std::uint8_t> model() const override { return {}; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    parts.emplace_back(text.size(), text.empty() ? ' ' : text.back());
    bytes_->encode(text, ids);
  }
  std::optional<TextCut> last_cut(std::string_view text) const override {
    const std::size_t stop = text.rfind('.');
    if (!cuts_ || stop == text.npos) return std::nullopt;
    return TextCut{stop + 1, stop + 1};
  }
  std::string decode(std::span<const std::int32_t> ids) const override { return bytes_->decode(ids); }

  mutable std::vector<std::pair<std::size_t, char>> parts;  // bytes, and the last

 private:
  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  bool cuts_;
};

constexpr std::size_t mib = std::size_t{1} << 20;

/// Text of some MiB, with characters that lie across all multiples of a MiB, and a stretch of 3 MiB without a
/// stop.
std::string long_text() {
  std::string text;
  while (text.size() < 3 * mib)
    text +=
        "A sentence of Gr\xc3\xbc\xc3\x9f"
        "e.";
  while (text.size() < 6 * mib) text += "\xe4\xb8\xad";
  return text + ". The end";
}

TEST_F(PackLarge, DocumentsAreEncodedInPartsBetweenCuts) {
  const std::string text = long_text();
  add("a.txt", "before");
  add("b.txt", text);
  add("c.jsonl", "{\"text\": \"" + text + "\"}\n");
  add("d.txt", "behind");
  PackOptions with = options();
  const auto stops = std::make_shared<Stops>(true);
  with.tokenizer = stops;
  with.threads = 1;  // it remembers in order
  with.shard_tokens = 2000;
  std::vector<std::int64_t> read;
  with.on_read = [&](std::int64_t bytes, std::int64_t) { read.push_back(bytes); };
  pack(with);
  EXPECT_THAT(documents_in(with.output), ElementsAre("before", text, text, "behind"));
  EXPECT_GE(read.size(), 8u);
  EXPECT_TRUE(std::ranges::is_sorted(read));
  const auto& parts = stops->parts;
  ASSERT_EQ(parts.size() % 2, 0u);  // each text is cut alike in both forms
  for (std::size_t i = 1; i < parts.size() / 2; ++i) {
    EXPECT_EQ(parts[i], parts[parts.size() / 2 + i - 1]);
    if (i + 1 < parts.size() / 2) {
      EXPECT_EQ(parts[i].second, '.');
    }
  }
  EXPECT_EQ(test::shards_in(with.output).size(), 4u);
  with.tokenizer = make_byte_tokenizer();
  with.output = folder_.path() / "bytes";
  pack(with);
  EXPECT_EQ(test::shards_in(with.output), test::shards_in(options().output));
}

TEST_F(PackLarge, WhatCannotBeCutHasALargestSize) {
  PackOptions with = options();
  with.tokenizer = std::make_shared<Stops>(true);
  const std::string text = std::string(3, '.') + std::string(static_cast<std::size_t>(longest_part) + 1, 'x');
  const std::string path = add("a.txt", text);
  EXPECT_THAT(pack_error(with), mentions("'" + path + "'", "byte 3 "));
  add("a.txt", "fits." + text.substr(3, 2 * mib));
  EXPECT_EQ(pack(with).documents, 1);
}

/// The ids of a long document do not lie in memory, and leave nothing behind.
TEST_F(PackLarge, IdsOfALongDocumentGoThroughAFile) {
  const std::size_t size = static_cast<std::size_t>(ShardTokens::most_held) + 5 * mib;
  {
    std::ofstream file(add("a.txt", ""));
    for (std::size_t i = 0; i < size / mib; ++i) file << std::string(mib, static_cast<char>('a' + i % 26));
  }
  add("b.txt", "behind");
  PackOptions with = options();
  const std::int64_t before = peak_memory();
  const PackSummary summary = pack(with);
  EXPECT_LT(peak_memory() - before, std::int64_t{200} << 20);
  EXPECT_EQ(summary.shards.size(), 2u);
  EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(size) + 8);
  const TokenShard shard = TokenShard::open(with.output / "tokens-000000.h5");
  std::vector<std::int32_t> ids(mib + 2);
  shard.read(static_cast<std::int64_t>(size - mib) - 1, ids);
  EXPECT_EQ(ids.front(), 'a' + (size / mib - 2) % 26);
  EXPECT_EQ(ids[1], 'a' + (size / mib - 1) % 26);
  EXPECT_EQ(ids.back(), 256);
  EXPECT_EQ(std::distance(fs::directory_iterator(with.output), {}), 4);  // shards, pack.json, pack.lock
}

TEST_F(PackLarge, ShardTokensAreOneRow) {
  ShardTokens tokens(folder_.path() / "a");
  const auto append = [&](std::int64_t count) {
    for (std::int64_t id = tokens.size(); count > 0; --count) tokens.end().push_back(std::int32_t(id++));
    tokens.settle();
  };
  const auto starts_with = [&](std::int32_t first) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, ids);
    std::vector<std::int32_t> expected(ids.size());
    std::iota(expected.begin(), expected.end(), first);
    return ids == expected;
  };
  append(ShardTokens::most_held);
  append(300);  // goes to the file, with all before
  append(200);
  EXPECT_TRUE(starts_with(0));
  tokens.erase_front(ShardTokens::most_held - 1000);
  EXPECT_EQ(tokens.size(), 1500);
  EXPECT_TRUE(starts_with(ShardTokens::most_held - 1000));
  tokens.erase_front(1500);
  EXPECT_EQ(tokens.size(), 0);
  append(10);
  EXPECT_TRUE(starts_with(0));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(PackLarge, LinesHaveALargestSize) {
  const std::string lines = add("b.jsonl", "{\"text\": \"first\"}\n");
  {
    std::ofstream file(lines, std::ios::app);
    const std::string part(std::size_t{1} << 20, 'x');
    for (std::int64_t bytes = 0; bytes <= longest_line; bytes += std::ssize(part)) file << part;
    file << "\n{\"text\": \"last\"}\n";
  }
  PackOptions with = options();
  EXPECT_THAT(pack_error(with), mentions("b.jsonl', line 2: ", "268435456"));
  with.bad_lines = BadLines::skip;
  EXPECT_EQ(pack(with).skipped_lines, 1);
  EXPECT_THAT(documents_in(with.output), ElementsAre("first", "last"));
}

}  // namespace
}  // namespace annulus::data
