#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "training/data/shard.hpp"

namespace annulus::data {

/// How often each token id occurs.
class TokenHistogram {
 public:
  void add(std::span<const std::int32_t> ids);
  void add(const TokenHistogram& other);
  std::int64_t total() const { return total_; }

  /// Entropy of the ids taken one by one, −Σ p·ln p, in nats per token: the loss of the best model that knows
  /// nothing but how frequent each id is.
  double entropy() const;

 private:
  std::vector<std::int64_t> counts_;                       // of ids below 2^24
  std::unordered_map<std::int32_t, std::int64_t> others_;  // few: vocabularies that large are made up
  std::int64_t total_ = 0;
};

/// Adds the ids of a shard. Reads all of it; memory is bounded.
void count_tokens(const TokenShard& shard, TokenHistogram& histogram);

/// Checks everything the format promises: what opening checks, every id, the loss mask, checksums, and that
/// the embedded tokenizer is the one named. Reads all of the shard once; memory is bounded. Throws Error.
/// Returns early when `stop` says so.
void verify_shard(const TokenShard& shard, const std::stop_token& stop = {});

/// Verifies token shards one after the other in a thread of low priority while they are in use.
class BackgroundVerification {
 public:
  explicit BackgroundVerification(std::vector<std::string> shards);

  /// Stops within the time that a MiB of tokens takes.
  ~BackgroundVerification() = default;
  BackgroundVerification(const BackgroundVerification&) = delete;
  BackgroundVerification& operator=(const BackgroundVerification&) = delete;

  /// What is wrong with the first bad shard, by name; empty while none was found. Does not wait.
  std::string problem() const { return done_ ? problem_ : std::string(); }

  /// True when all shards were verified, or one was found bad.
  bool done() const { return done_; }

 private:
  std::string problem_;  // written before done_
  std::atomic<bool> done_ = false;
  std::jthread thread_;  // ends before what it writes to goes
};

}  // namespace annulus::data
