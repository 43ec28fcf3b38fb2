#include <algorithm>

#include <annulus/base/error.hpp>
#include <annulus/base/file.hpp>
#include <annulus/base/version.hpp>
#include <annulus/data/shard.hpp>
#include <annulus/io/crc32.hpp>
#include <annulus/io/hdf5_writer.hpp>

#include "token_type.hpp"

namespace annulus::data {

namespace {

void require_contents(const std::string& path, const TokenizerIdentity& identity,
                      std::span<const std::int32_t> tokens, std::span<const std::int64_t> documents) {
  require(!tokens.empty() && !documents.empty(),
          "cannot write '{}': a shard has at least one document and one token", path);
  const auto size = static_cast<std::int64_t>(tokens.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    require(i == 0 ? documents[0] == 0 : documents[i] > documents[i - 1] && documents[i] < size,
            "cannot write '{}': document {} starts at {}; starts must increase from 0 and lie below the {} "
            "tokens",
            path, i, documents[i], size);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    require(tokens[i] >= 0 && tokens[i] < identity.vocabulary,
            "cannot write '{}': token {} has id {}, which is not below the vocabulary {}", path, i, tokens[i],
            identity.vocabulary);
  }
}

/// Writes the ids in their stored type, piece by piece; returns the CRC-32 of the stored bytes.
std::uint32_t write_tokens(io::FileWriter& file, DType type, std::span<const std::int32_t> tokens) {
  io::DatasetWriter dataset = file.create_dataset("tokens", type, {tokens.size()});
  std::uint32_t crc = 0;
  with_token_type(type, [&]<class T>(T) {
    std::vector<T> piece;
    for (std::size_t at = 0; at < tokens.size(); at += piece_tokens) {
      const auto ids = tokens.subspan(at, std::min<std::size_t>(piece_tokens, tokens.size() - at));
      piece.resize(ids.size());
      std::transform(ids.begin(), ids.end(), piece.begin(),
                     [](std::int32_t id) { return static_cast<T>(id); });
      dataset.write({{at}, {piece.size()}}, std::span<const T>(piece));
      crc = io::crc32_of(std::span<const T>(piece), crc);
    }
  });
  return crc;
}

}  // namespace

ShardHeader write_shard(const std::filesystem::path& path, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> tokens, std::span<const std::int64_t> documents) {
  const TokenizerIdentity& identity = tokenizer.identity();
  require_contents(path.string(), identity, tokens, documents);
  ShardHeader header;
  header.path = path.string();
  header.tokenizer = identity;
  header.type = token_type(identity.vocabulary);
  header.tokens = static_cast<std::int64_t>(tokens.size());
  header.documents = static_cast<std::int64_t>(documents.size());
  header.creator = fmt::format("annulus {}", version());
  require_no_link(path, "a token shard");
  io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
    const std::vector<std::uint64_t> starts(documents.begin(), documents.end());
    header.checksum = write_tokens(file, header.type, tokens);
    header.checksum = io::crc32_of(std::span<const std::uint64_t>(starts), header.checksum);
    file.write("documents", std::span<const std::uint64_t>(starts), {starts.size()});
    if (!tokenizer.model().empty())
      file.write("tokenizer_model", tokenizer.model(), {tokenizer.model().size()});
    file.set_attribute("format", shard_format);
    file.set_attribute("version", shard_version);
    file.set_attribute("tokenizer", identity.name);
    file.set_attribute("vocabulary", identity.vocabulary);
    file.set_attribute("end_of_document", identity.end_of_document);
    if (!identity.fingerprint.empty()) file.set_attribute("fingerprint", identity.fingerprint);
    file.set_attribute("checksum", header.checksum);
    file.set_attribute("creator", header.creator);
  });
  return header;
}

std::vector<std::filesystem::path> find_shards(std::span<const std::filesystem::path> paths) {
  std::vector<std::filesystem::path> shards;
  require(!paths.empty(),
          "no token shards were given: name files or folders that annulus-tokens pack has made");
  for (const auto& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      shards.push_back(path);  // opening it tells what is wrong with it
      continue;
    }
    std::vector<std::filesystem::path> found;
    for (auto entry = std::filesystem::directory_iterator(path, error);
         !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      const bool hidden = entry->path().filename().string().starts_with('.');
      std::error_code gone;
      if (!hidden && entry->path().extension() == ".h5" && entry->is_regular_file(gone))
        found.push_back(entry->path());
    }
    require(!error, "cannot list the folder '{}': {}; check its permissions", path.string(), error.message());
    require(!found.empty(), "the folder '{}' has no token shards (*.h5): make some with annulus-tokens pack",
            path.string());
    std::sort(found.begin(), found.end());
    shards.insert(shards.end(), found.begin(), found.end());
  }
  return shards;
}

}  // namespace annulus::data
