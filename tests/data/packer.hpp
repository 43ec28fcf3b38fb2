#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/data/packer.hpp>
#include <annulus/io/atomic.hpp>

#include "data/shards.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data::test {

/// The documents of all shards of a folder, decoded.
inline std::vector<std::string> documents_in(const std::filesystem::path& folder) {
  std::vector<std::string> texts;
  for_each_document(folder, [&](const TokenShard& shard, const std::vector<std::int32_t>& ids) {
    EXPECT_EQ(ids.back(), shard.header().tokenizer.end_of_document);
    texts.push_back(shard.tokenizer()->decode(ids));
  });
  return texts;
}

/// Names and contents of the shards of a folder.
inline std::map<std::string, std::string> shards_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".h5") contents[entry.path().filename()] = io::read_text(entry.path());
  }
  return contents;
}

class PackerTest : public testing::Test {
 protected:
  PackOptions options(const std::string& output = "out") const {
    PackOptions options;
    options.inputs = {folder_.path() / "in"};
    options.output = folder_.path() / output;
    options.tokenizer = make_byte_tokenizer();
    return options;
  }

  std::string add(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((folder_.path() / "in" / name).parent_path());
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
};

/// Makes a file longer than it is, without room on the disk: zeros follow.
inline void extend(const std::string& path, std::uintmax_t bytes) {
  std::filesystem::resize_file(path, bytes);
}

}  // namespace annulus::data::test
