#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include <annulus/training/data/tokenizer.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

/// Token shards: HDF5 files of token ids with document boundaries, specified in docs/formats/token-shards.md.
namespace annulus::data {

inline constexpr const char* shard_format = "annulus-tokens";
inline constexpr std::int64_t shard_version = 1;

/// Documents of one shard: that many offsets are gone through when it is opened.
inline constexpr std::int64_t max_documents = std::int64_t{1} << 26;

/// What the header of a shard says.
struct ShardHeader {
  std::string path;
  TokenizerIdentity tokenizer;
  DType type = DType::u16;  ///< of the stored ids: u8, u16 or u32
  std::int64_t tokens = 0, documents = 0;
  std::uint32_t checksum = 0;
  std::string creator;
  std::optional<std::uint32_t> loss_mask_checksum = {};  ///< none: there is no loss_mask, all tokens count
};

/// A shard opened for reading. Opening checks the header (format, version, tokenizer, types, shapes, not
/// empty) and the offsets of the documents, and reads no tokens.
class TokenShard {
 public:
  /// Throws Error that names the file, what is wrong with it and what to do.
  static TokenShard open(const std::filesystem::path& path);

  const ShardHeader& header() const { return header_; }

  /// Token ids [start, start + out.size()). Throws Error naming file and offset when an id is not below the
  /// vocabulary.
  void read(std::int64_t start, std::span<std::int32_t> out) const;

  /// `count` blocks of `block` ids, the first at `start`, `stride` ≥ block apart, one after the other. Ids
  /// are not checked; require_ids does that.
  void read_blocks(std::int64_t start, std::int64_t stride, std::int64_t count, std::int64_t block,
                   std::span<std::int32_t> out) const;

  /// Throws Error unless 0 ≤ id < vocabulary for every id; `start` is the offset of the first in the file.
  void require_ids(std::int64_t start, std::span<const std::int32_t> ids) const;

  /// Which tokens count as targets, in blocks as read_blocks gives ids: 1 or 0. Of a shard with a loss_mask.
  /// Throws Error naming file and offset where it says neither.
  void read_loss_mask(std::int64_t start, std::int64_t stride, std::int64_t count, std::int64_t block,
                      std::span<std::uint8_t> out) const;

  /// Start offsets of the documents: increasing from 0, below the number of tokens. Those from `begin` on and
  /// below `end` are read from the file: a shard may have more than should lie in memory.
  std::vector<std::int64_t> documents(std::int64_t begin, std::int64_t end) const;
  std::vector<std::int64_t> documents() const { return documents(0, header_.tokens); }

  /// CRC-32 over the bytes of the tokens and the documents as they should lie in the file. Reads everything,
  /// in pieces, and calls `use` with the offset and the ids of each, unchecked. Where `use` returns false it
  /// ends early, and the result means nothing.
  std::uint32_t compute_checksum(
      const std::function<bool(std::int64_t start, std::span<const std::int32_t> ids)>& use) const;

  /// What a shard with a loss_mask says in all.
  struct LossMask {
    std::uint32_t checksum = 0;  ///< CRC-32 over its bytes as they should lie in the file
    std::int64_t counted = 0;    ///< tokens that count as targets
  };
  /// Reads all of it, in pieces. Ends early when `stop` says so, and the result means nothing. Throws Error
  /// as read_loss_mask.
  LossMask sum_loss_mask(const std::stop_token& stop = {}) const;

  /// The tokenizer that made the ids. Throws Error when it is neither "byte" nor "sentencepiece".
  std::unique_ptr<const Tokenizer> tokenizer() const;

 private:
  TokenShard(io::File file, io::Dataset tokens, io::Dataset documents, std::optional<io::Dataset> loss_mask,
             ShardHeader header, std::vector<std::int64_t> some_documents);
  void require_loss_mask(std::int64_t start, std::span<const std::uint8_t> values) const;

  io::File file_;
  io::Dataset tokens_, documents_;
  std::optional<io::Dataset> loss_mask_;
  ShardHeader header_;
  std::vector<std::int64_t> some_documents_;  // the first of each row of document_row of them
};

/// Writes a shard, atomically. `documents` are the start offsets; ids must be below the vocabulary;
/// `loss_mask` has 1 for each token that counts as a target and 0 for the others, or is empty. Equal
/// arguments give equal bytes. Returns what its header says.
ShardHeader write_shard(const std::filesystem::path& path, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> tokens, std::span<const std::int64_t> documents,
                        std::span<const std::uint8_t> loss_mask = {});

/// Fills `out` with the ids, or the loss mask, from `start` on of a shard that is being written.
template <class T>
using ShardSource = std::function<void(std::int64_t start, std::span<T> out)>;

/// Writes a shard of `tokens` ids that need not be in memory: `read` is asked for them once, in order, and
/// then `loss_mask`, which may be empty.
ShardHeader write_shard(const std::filesystem::path& path, const Tokenizer& tokenizer, std::int64_t tokens,
                        const ShardSource<std::int32_t>& read, std::span<const std::int64_t> documents,
                        const ShardSource<std::uint8_t>& loss_mask = {});

/// The shards that `paths` stand for: files as they are, folders as their *.h5 files sorted by name, without
/// names that start with a dot; links to shards count as shards. Throws Error when a folder has none or
/// cannot be listed.
std::vector<std::filesystem::path> find_shards(std::span<const std::filesystem::path> paths);

/// The headers of the shards that `paths` stand for (find_shards), in their order. Opens every shard. Throws
/// Error when one is no good.
std::vector<ShardHeader> read_headers(std::span<const std::filesystem::path> paths);

/// The headers as bytes (CBOR), for a process of the same build that is not to open all shards again.
std::string to_bytes(std::span<const ShardHeader> headers);

/// The inverse of to_bytes. Throws Error when the bytes are no headers.
std::vector<ShardHeader> headers_from_bytes(std::string_view bytes);

}  // namespace annulus::data
