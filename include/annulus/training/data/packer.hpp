#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <annulus/training/data/tokenizer.hpp>

namespace annulus::data {

/// Bytes of the longest line of a JSON-lines file, and of the longest part of a document in which the
/// tokenizer knows no place to cut it (Tokenizer::last_cut).
inline constexpr std::int64_t longest_line = std::int64_t{1} << 28;
inline constexpr std::int64_t longest_part = std::int64_t{1} << 26;

/// What happens at a line of a JSON-lines file that is no JSON object with a string "text".
enum class BadLines : std::uint8_t {
  error,  ///< the pack ends; it goes on behind its last shard when the line is correct, or with `skip`
  skip    ///< the line is counted and passed over
};

/// A shard that has been written.
struct PackedShard {
  std::string file;  ///< its name in the output folder
  std::int64_t tokens = 0, documents = 0;
  std::uint32_t checksum = 0;  ///< of tokens and documents (docs/formats/token-shards.md)
};

struct PackOptions {
  /// Text files, folders (walked in sorted order; names that start with a dot are passed over) and JSON-lines
  /// files, with a document in "text" of each record: *.jsonl and *.ndjson in any case, also packed by gzip
  /// (*.jsonl.gz), and *.json whose first line is such a record. Every other file is a document, byte for
  /// byte.
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  ///< folder of the shards; made when missing
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t shard_tokens =
      33554432;  ///< a shard is closed before it would grow beyond; one document never is cut
  std::vector<std::string> extensions;  ///< files taken from folders, with or without dot; empty: all
  bool follow_links = false;            ///< links inside folders are followed, wherever they lead
  BadLines bad_lines = BadLines::error;
  /// File that says how the conversations of JSON-lines files become text, and which tokens count (loss_mask;
  /// docs/formats/token-shards.md); empty: records have a text, and all tokens count.
  std::filesystem::path chat_template;
  int threads = 0;  ///< that encode at the same time; 0: one for each core. Shards do not depend on it
  std::string tokenizer_settings;  ///< what else the ids depend on; a pack goes on with the same alone
  /// Stream to a process that reads Parquet files (*.parquet) and stays open (pack_tokenizer_json.py); -1:
  /// there is none, and such a file is an Error. A u64 n and n bytes name the file to read, in place of any
  /// before. A u64 that is 0 asks for what comes next, with which it answers: a u64 that is 0, a u64 with the
  /// bytes of the file that are unread, a u64 n (0 at the end) and n bytes of JSON lines, one for each row;
  /// or 1, 0, a u64 n and a message of n bytes, which pack throws as Error.
  int parquet_reader = -1;
  /// Called after each shard.
  std::function<void(const PackedShard& shard, std::int64_t number)> on_shard = [](auto&&...) {};
  /// Called after each document and, of a long one, each MiB for each thread: bytes of the inputs that this
  /// call has read, of those that it has to read.
  std::function<void(std::int64_t read, std::int64_t total)> on_read = [](auto&&...) {};
  /// Called with what was passed over or taken for something else, and why.
  std::function<void(const std::string& text)> on_note = [](auto&&...) {};
};

struct PackSummary {
  std::vector<std::string> shards;  ///< file names inside the output folder
  std::int64_t tokens = 0, documents = 0;
  std::int64_t skipped_binary = 0;  ///< inputs that hold a NUL or are not UTF-8
  std::int64_t skipped_empty = 0;
  std::int64_t skipped_lines = 0;   ///< of JSON-lines files, with BadLines::skip
  double unigram_entropy = 0;       ///< nats per token
  std::int64_t resumed_shards = 0;  ///< shards that an earlier, interrupted run had written
  bool was_complete = false;        ///< an earlier run had finished; nothing was done
};

/// Packs text into token shards `tokens-000000.h5`, … in the output folder. Every shard is written aside and
/// renamed, and `pack.json` then records how far packing came: an interrupted run goes on behind its last
/// shard when the same call is made again. Equal inputs give equal shards, byte for byte. Memory: 2^25 ids
/// and, for each thread, a MiB of documents, a part of one (as much as the tokenizer cannot cut) or one line
/// of JSON, with its ids; a longer shard lies in a file without a name in the output folder until it is
/// written. A file that is no text is left where that shows. Throws Error when the folder holds shards of
/// other arguments or inputs (those that were not packed yet may have changed), or anything else is in the
/// way.
PackSummary pack(PackOptions options);

}  // namespace annulus::data
