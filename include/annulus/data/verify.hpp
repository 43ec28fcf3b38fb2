#pragma once

#include <cstdint>
#include <vector>

#include <annulus/data/shard.hpp>

namespace annulus::data {

/// How often each token id occurs.
class TokenHistogram {
 public:
  void add(std::span<const std::int32_t> ids);
  std::int64_t total() const { return total_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }

  /// Entropy of the ids taken one by one, −Σ p·ln p, in nats per token: the loss of the best model that knows
  /// nothing but how frequent each id is.
  double entropy() const;

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t total_ = 0;
};

/// Adds the ids of a shard. Reads all of it; memory is bounded.
void count_tokens(const TokenShard& shard, TokenHistogram& histogram);

/// Checks everything the format promises: what opening checks, every id, the checksum, and that the embedded
/// tokenizer is the one named. Throws Error. Adds the ids to `histogram` when given.
void verify_shard(const TokenShard& shard, TokenHistogram* histogram = nullptr);

}  // namespace annulus::data
