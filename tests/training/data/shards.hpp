#pragma once

#include <random>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/data/dataset.hpp"
#include "training/data/verify.hpp"
#include "training/io/atomic.hpp"
#include "training/io/crc32.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::data::test {

using annulus::test::TemporaryFolder;

inline void expect_equal(const Sequence& got, const Sequence& expected) {
  EXPECT_EQ(got.index, expected.index);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.targets, expected.targets);
  EXPECT_EQ(got.document_starts, expected.document_starts);
}

/// The stream of all shards of a folder.
inline TokenDataset dataset_of(const TemporaryFolder& folder, std::int64_t sequence_tokens) {
  return TokenDataset(std::span(&folder.path(), 1), sequence_tokens);
}

/// A shard made by hand, good as it stands; tests spoil one thing. T is the stored type of the ids.
template <class T = std::uint16_t>
struct RawShard {
  std::optional<std::string> format = "annulus-tokens";
  std::int64_t version = 1;
  std::string tokenizer = "byte";
  std::int64_t vocabulary = 257, end_of_document = 256;
  std::optional<std::string> fingerprint;
  std::vector<T> tokens{T('a'), T('b'), T(256), T('c'), T(256)};
  std::vector<std::uint64_t> documents{0, 3};
  std::optional<std::int64_t> checksum;
  std::vector<std::uint8_t> loss_mask = {};  // empty: there is none
  std::optional<std::int64_t> loss_mask_checksum = {};

  void write(const std::filesystem::path& path) const {
    io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
      const std::span<const T> ids(tokens);
      const std::span<const std::uint64_t> starts(documents);
      if (format) file.set_attribute("format", *format);
      file.set_attribute("version", version);
      file.set_attribute("tokenizer", tokenizer);
      file.set_attribute("vocabulary", vocabulary);
      file.set_attribute("end_of_document", end_of_document);
      if (fingerprint) file.set_attribute("fingerprint", *fingerprint);
      file.set_attribute("checksum", checksum.value_or(io::crc32_of(starts, io::crc32_of(ids))));
      file.write("tokens", ids, {ids.size()});
      file.write("documents", starts, {starts.size()});
      const std::span<const std::uint8_t> counts(loss_mask);
      if (!counts.empty()) file.write("loss_mask", counts, {counts.size()});
      if (!counts.empty() || loss_mask_checksum)
        file.set_attribute("loss_mask_checksum", loss_mask_checksum.value_or(io::crc32_of(counts)));
    });
  }
};

/// A stream of random ids in files of uneven sizes, kept in memory to compare with.
struct RandomStream {
  std::vector<std::filesystem::path> files;
  std::vector<std::int32_t> tokens;  // of the whole stream
  std::vector<bool> starts;          // whether a document starts here
  std::vector<bool> counts;          // as a target

  /// Writes files of `sizes` tokens with documents of about `document` tokens. T is the stored type. With
  /// `masked` every second file, from the first on, has a loss mask.
  template <class T>
  static RandomStream write(const std::filesystem::path& folder, const std::vector<std::int64_t>& sizes,
                            std::int64_t vocabulary, std::int64_t document, unsigned seed,
                            bool masked = false) {
    std::mt19937_64 random(seed);
    RandomStream stream;
    for (std::size_t f = 0; f < sizes.size(); ++f) {
      RawShard<T> shard;
      shard.tokenizer = "random";
      shard.vocabulary = vocabulary;
      shard.end_of_document = 0;
      shard.tokens.clear();
      shard.documents.clear();
      for (std::int64_t i = 0; i < sizes[f]; ++i) {
        const bool start = i == 0 || random() % static_cast<std::uint64_t>(document) == 0;
        if (start) shard.documents.push_back(static_cast<std::uint64_t>(i));
        shard.tokens.push_back(static_cast<T>(random() % static_cast<std::uint64_t>(vocabulary)));
        stream.tokens.push_back(static_cast<std::int32_t>(shard.tokens.back()));
        stream.starts.push_back(start);
        const bool in_mask = masked && f % 2 == 0, counts = !in_mask || random() % 3 == 0;
        if (in_mask) shard.loss_mask.push_back(counts ? 1 : 0);
        stream.counts.push_back(counts);
      }
      stream.files.push_back(folder / ("tokens-" + std::to_string(100 + f) + ".h5"));
      shard.write(stream.files.back());
    }
    return stream;
  }
};

/// Names and contents of the shards of a folder.
inline std::map<std::string, std::string> shards_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".h5") contents[entry.path().filename()] = io::read_text(entry.path());
  return contents;
}

/// Calls use(shard, ids) for each document of the shards of a folder, which it verifies.
template <class Use>
void for_each_document(const std::filesystem::path& folder, const Use& use) {
  for (const auto& path : find_shards(std::span(&folder, 1))) {
    const TokenShard shard = TokenShard::open(path);
    verify_shard(shard);
    std::vector<std::int64_t> starts = shard.documents();
    starts.push_back(shard.header().tokens);
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(starts[d + 1] - starts[d]));
      shard.read(starts[d], ids);
      use(shard, ids);
    }
  }
}

}  // namespace annulus::data::test
