#pragma once

#include <annulus/training/data/packer.hpp>

#include "training/data/shards.hpp"

namespace annulus::data {

namespace fs = std::filesystem;
using testing::ElementsAre;

/// The documents of all shards of a folder, decoded.
inline std::vector<std::string> documents_in(const fs::path& folder) {
  std::vector<std::string> texts;
  test::for_each_document(folder, [&](const TokenShard& shard, const std::vector<std::int32_t>& ids) {
    EXPECT_EQ(ids.back(), shard.header().tokenizer.end_of_document);
    texts.push_back(shard.tokenizer()->decode(ids));
  });
  return texts;
}

/// The error that packing ends with.
inline std::string pack_error(const PackOptions& options) {
  return error_text([&] { pack(options); });
}

/// Packs until shard `last` is written, as if it were interrupted then.
inline void pack_until(PackOptions options, std::int64_t last) {
  options.on_shard = [=](const PackedShard&, std::int64_t number) {
    if (number == last) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(pack(options), std::runtime_error);
}

/// Makes a file longer than it is, without room on the disk: zeros follow.
inline void extend(const std::string& path, std::uintmax_t bytes) {
  fs::resize_file(path, bytes);
}

class PackerTest : public testing::Test {
 protected:
  /// Options for packing the folder "in"; notes go to notes_.
  PackOptions options(const std::string& output = "out") {
    PackOptions options;
    options.inputs = {folder_.path() / "in"};
    options.output = folder_.path() / output;
    options.tokenizer = make_byte_tokenizer();
    options.on_note = [this](const std::string& text) { notes_.push_back(text); };
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

  annulus::test::TemporaryFolder folder_;
  std::vector<std::string> notes_;
};

}  // namespace annulus::data
