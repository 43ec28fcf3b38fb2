#include "training/data/verify.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include <annulus/base/error.hpp>

#include "token_type.hpp"

namespace annulus::data {

namespace {

/// Ids below this are counted in a table. A shard may claim a vocabulary of 2^31, whose table no memory
/// holds.
constexpr std::size_t largest_vocabulary = std::size_t{1} << 24;

}  // namespace

void TokenHistogram::add(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    const auto slot = static_cast<std::size_t>(id);
    if (slot >= largest_vocabulary) {
      ++others_[id];
      continue;
    }
    if (slot >= counts_.size()) counts_.resize(slot + 1);
    ++counts_[slot];
  }
  total_ += static_cast<std::int64_t>(ids.size());
}

void TokenHistogram::add(const TokenHistogram& other) {
  counts_.resize(std::max(counts_.size(), other.counts_.size()));
  for (std::size_t id = 0; id < other.counts_.size(); ++id) counts_[id] += other.counts_[id];
  for (const auto& [id, count] : other.others_) others_[id] += count;
  total_ += other.total_;
}

double TokenHistogram::entropy() const {
  double sum = 0;
  const auto add = [&](std::int64_t count) {
    const double p = static_cast<double>(count) / static_cast<double>(total_);
    if (count > 0) sum -= p * std::log(p);
  };
  for (const std::int64_t count : counts_) add(count);
  for (const auto& [id, count] : others_) add(count);
  return sum;
}

void count_tokens(const TokenShard& shard, TokenHistogram& histogram) {
  std::vector<std::int32_t> ids;
  const std::int64_t tokens = shard.header().tokens;
  for (std::int64_t at = 0; at < tokens; at += piece_tokens) {
    ids.resize(static_cast<std::size_t>(std::min(piece_tokens, tokens - at)));
    shard.read(at, ids);
    histogram.add(ids);
  }
}

void verify_shard(const TokenShard& shard, const std::stop_token& stop) {
  std::exception_ptr bad_id;  // comes behind a wrong checksum, which may be why
  const std::uint32_t checksum =
      shard.compute_checksum([&](std::int64_t start, std::span<const std::int32_t> ids) {
        try {
          if (!bad_id) shard.require_ids(start, ids);
        } catch (const Error&) {
          bad_id = std::current_exception();
        }
        return !stop.stop_requested();
      });
  if (stop.stop_requested()) return;
  require(checksum == shard.header().checksum,
          "'{}': the checksum of the contents is {:08x}, the header says {:08x}: the shard is damaged; copy "
          "or write it again",
          shard.header().path, checksum, shard.header().checksum);
  if (bad_id) std::rethrow_exception(bad_id);
  if (const auto expected = shard.header().loss_mask_checksum) {
    const std::uint32_t found = shard.sum_loss_mask(stop).checksum;
    if (stop.stop_requested()) return;
    require(found == *expected,
            "'{}': the checksum of the loss_mask is {:08x}, the header says {:08x}: the shard is damaged; "
            "copy or write it again",
            shard.header().path, found, *expected);
  }
  if (shard.header().tokenizer.name == "sentencepiece") shard.tokenizer();
}

BackgroundVerification::BackgroundVerification(std::vector<std::string> shards) {
  thread_ = std::jthread([this, shards = std::move(shards)](const std::stop_token& stop) {
    [[maybe_unused]] const int priority = ::nice(19);  // of this thread: computation goes first
    try {
      for (const std::string& path : shards) {
        if (stop.stop_requested()) return;
        verify_shard(TokenShard::open(path), stop);
      }
    } catch (const std::exception& error) {
      problem_ = error.what();
    }
    done_ = true;
  });
}

}  // namespace annulus::data
