#include <algorithm>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "base/file.hpp"
#include "token_type.hpp"
#include "training/data/shard.hpp"
#include "training/io/crc32.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::data {

namespace {

void require_documents(const std::string& path, std::int64_t tokens,
                       std::span<const std::int64_t> documents) {
  require(tokens > 0 && !documents.empty(),
          "cannot write '{}': a shard has at least one document and one token", path);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    require(i == 0 ? documents[0] == 0 : documents[i] > documents[i - 1] && documents[i] < tokens,
            "cannot write '{}': document {} starts at {}; "
            "starts must increase from 0 and lie below the {} tokens",
            path, i, documents[i], tokens);
  }
}

/// Writes a dataset of one dimension in pieces, which `fill` makes; adds its bytes to the CRC-32.
template <class T, class Fill>
void write_pieces(io::FileWriter& file, const char* name, DType type, std::int64_t size, std::uint32_t& crc,
                  const Fill& fill) {
  io::DatasetWriter dataset = file.create_dataset(name, type, {static_cast<std::uint64_t>(size)});
  std::vector<T> piece;
  for (std::int64_t at = 0; at < size; at += std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min(piece_tokens, size - at)));
    fill(at, std::span<T>(piece));
    dataset.write({{static_cast<std::uint64_t>(at)}, {piece.size()}}, std::span<const T>(piece));
    crc = io::crc32_of(std::span<const T>(piece), crc);
  }
}

}  // namespace

ShardHeader write_shard(const std::filesystem::path& path, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> tokens, std::span<const std::int64_t> documents,
                        std::span<const std::uint8_t> loss_mask) {
  require(loss_mask.empty() || loss_mask.size() == tokens.size(),
          "cannot write '{}': its loss_mask has {} values for {} tokens; give one for each token",
          path.string(), loss_mask.size(), tokens.size());
  const auto source = [](const auto& values) {
    return [&values]<class T>(std::int64_t start, std::span<T> out) {
      std::ranges::copy(values.subspan(static_cast<std::size_t>(start), out.size()), out.begin());
    };
  };
  return write_shard(
      path, tokenizer, std::ssize(tokens), source(tokens), documents,
      loss_mask.empty() ? ShardSource<std::uint8_t>() : ShardSource<std::uint8_t>(source(loss_mask)));
}

ShardHeader write_shard(const std::filesystem::path& path, const Tokenizer& tokenizer, std::int64_t tokens,
                        const ShardSource<std::int32_t>& read, std::span<const std::int64_t> documents,
                        const ShardSource<std::uint8_t>& loss_mask) {
  const TokenizerIdentity& identity = tokenizer.identity();
  require_documents(path.string(), tokens, documents);
  ShardHeader header;
  header.path = path.string();
  header.tokenizer = identity;
  header.type = token_type(identity.vocabulary);
  header.tokens = tokens;
  header.documents = std::ssize(documents);
  header.creator = fmt::format("annulus {}", version());
  require_no_link(path, "a token shard");
  io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
    with_token_type(header.type, [&]<class T>(T) {
      std::vector<std::int32_t> ids;
      write_pieces<T>(
          file, "tokens", header.type, tokens, header.checksum, [&](std::int64_t at, std::span<T> out) {
            ids.resize(out.size());
            read(at, ids);
            const auto bad = std::ranges::find_if(
                ids, [&](std::int32_t id) { return id < 0 || id >= identity.vocabulary; });
            require(bad == ids.end(),
                    "cannot write '{}': token {} has id {}, which is not below the vocabulary {}",
                    path.string(), at + (bad - ids.begin()), bad == ids.end() ? 0 : *bad,
                    identity.vocabulary);
            std::ranges::transform(ids, out.begin(), [](std::int32_t id) { return static_cast<T>(id); });
          });
    });
    write_pieces<std::uint64_t>(
        file, "documents", DType::u64, header.documents, header.checksum,
        [&](std::int64_t at, std::span<std::uint64_t> out) {
          std::ranges::copy(documents.subspan(static_cast<std::size_t>(at), out.size()), out.begin());
        });
    if (loss_mask) {
      write_pieces<std::uint8_t>(
          file, "loss_mask", DType::u8, tokens, header.loss_mask_checksum.emplace(0),
          [&](std::int64_t at, std::span<std::uint8_t> out) {
            loss_mask(at, out);
            const auto bad = std::ranges::find_if(out, [](std::uint8_t value) { return value > 1; });
            require(bad == out.end(),
                    "cannot write '{}': its loss_mask is {} at token {}; give 1 where a token counts, else 0",
                    path.string(), bad == out.end() ? 0 : int{*bad}, at + (bad - out.begin()));
          });
      file.set_attribute("loss_mask_checksum", *header.loss_mask_checksum);
    }
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
      // Links are followed, and what is no file or leads nowhere is not passed over: opening it names it.
      if (!hidden && entry->path().extension() == ".h5") found.push_back(entry->path());
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
