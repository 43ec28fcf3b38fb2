#include <annulus/data/verify.hpp>

#include <algorithm>
#include <cmath>

#include <annulus/base/error.hpp>

#include "token_type.hpp"

namespace annulus::data {

void TokenHistogram::add(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    const auto slot = static_cast<std::size_t>(id);
    if (slot >= counts_.size()) counts_.resize(slot + 1);
    ++counts_[slot];
  }
  total_ += static_cast<std::int64_t>(ids.size());
}

double TokenHistogram::entropy() const {
  double sum = 0;
  for (const std::int64_t count : counts_) {
    if (count > 0) {
      const double p = static_cast<double>(count) / static_cast<double>(total_);
      sum -= p * std::log(p);
    }
  }
  return sum;
}

namespace {

/// Reads and checks all ids of a shard, piece by piece.
template <class Use>
void for_each_piece(const TokenShard& shard, const Use& use) {
  std::vector<std::int32_t> ids;
  const std::int64_t tokens = shard.header().tokens;
  for (std::int64_t at = 0; at < tokens; at += piece_tokens) {
    ids.resize(static_cast<std::size_t>(std::min(piece_tokens, tokens - at)));
    shard.read(at, ids);
    use(std::span<const std::int32_t>(ids));
  }
}

}  // namespace

void count_tokens(const TokenShard& shard, TokenHistogram& histogram) {
  for_each_piece(shard, [&](std::span<const std::int32_t> ids) { histogram.add(ids); });
}

void verify_shard(const TokenShard& shard, TokenHistogram* histogram) {
  const std::uint32_t checksum = shard.compute_checksum();
  require(checksum == shard.header().checksum,
          "'{}': the checksum of the contents is {:08x}, the header says {:08x}: the shard is damaged; copy "
          "or write it "
          "again",
          shard.header().path, checksum, shard.header().checksum);
  for_each_piece(shard, [&](std::span<const std::int32_t> ids) {
    if (histogram != nullptr) histogram->add(ids);
  });
  if (shard.header().tokenizer.name == "sentencepiece") shard.tokenizer();
}

}  // namespace annulus::data
