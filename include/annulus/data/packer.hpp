#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <annulus/data/shard.hpp>

namespace annulus::data {

struct PackOptions {
  /// Text files, folders (walked in sorted order; names that start with a dot are passed over) and files
  /// *.jsonl with a document in "text" of each record. Every other file is a document.
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  ///< folder of the shards; made when missing
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t shard_tokens =
      33554432;  ///< a shard is closed before it would grow beyond; one document never is cut
  std::vector<std::string> extensions;  ///< files taken from folders, with dot; empty: all
  std::function<void(const ShardHeader& shard, std::int64_t number)> on_shard;  ///< called after each shard
  /// Called after each document: bytes of the inputs that this call has read, of those that it has to read.
  std::function<void(std::int64_t read, std::int64_t total)> on_read;
};

struct PackSummary {
  std::vector<std::string> shards;  ///< file names inside the output folder
  std::int64_t tokens = 0, documents = 0;
  std::int64_t skipped_binary = 0;  ///< inputs that hold a NUL or are not UTF-8
  std::int64_t skipped_empty = 0;
  double unigram_entropy = 0;       ///< nats per token
  std::int64_t resumed_shards = 0;  ///< shards that an earlier, interrupted run had written
  bool was_complete = false;        ///< an earlier run had finished; nothing was done
};

/// Packs text into token shards `tokens-000000.h5`, … in the output folder. Every shard is written aside and
/// renamed, and `pack.json` then records how far packing came: an interrupted run goes on behind its last
/// shard when the same call is made again. Equal inputs give equal shards, byte for byte. Memory: one shard
/// and one document. Throws Error when the folder holds shards of other arguments or inputs (those that were
/// not packed yet may have changed), or anything else is in the way.
PackSummary pack(const PackOptions& options);

}  // namespace annulus::data
