#include "training/data/order.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/splitmix.hpp"

namespace annulus::data {

namespace {

constexpr int rounds = 6;  // four make a Feistel network a strong pseudo-random permutation; two to spare

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(size), key_(key) {
  require(size > 0, "a permutation of {} elements was asked for; at least one is needed", size);
  const int bits = std::bit_width(static_cast<std::uint64_t>(size - 1));
  half_bits_ = (bits + 1) / 2;
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t next =
        left ^ (splitmix64(splitmix64(key_ + static_cast<std::uint64_t>(round)) ^ right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  ANNULUS_ASSERT(index >= 0 && index < size_);
  // The network permutes fewer than 4·size values, so a cycle is left after fewer than four steps on average.
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

std::vector<int> deal(std::span<const std::int64_t> work, int groups) {
  require(groups > 0 && std::ssize(work) % groups == 0,
          "{} sequences are to be dealt to {} groups: give a multiple", work.size(), groups);
  const std::size_t room = work.size() / static_cast<std::size_t>(groups);
  std::vector<std::size_t> order(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return work[i]; });
  struct Group {
    std::int64_t work = 0;
    std::size_t sequences = 0;
  };
  std::vector<Group> dealt(static_cast<std::size_t>(groups));
  std::vector<int> group_of(work.size());
  for (const std::size_t sequence : order) {
    const auto least = std::ranges::min_element(
        dealt, {}, [&](const Group& group) { return std::pair(group.sequences == room, group.work); });
    least->work += work[sequence];
    ++least->sequences;
    group_of[sequence] = static_cast<int>(least - dealt.begin());
  }
  return group_of;
}

SequenceOrder::SequenceOrder(std::int64_t sequences, std::uint64_t seed, bool shuffle)
    : sequences_(sequences), seed_(seed), shuffle_(shuffle) {
  require(sequences > 0, "an order of {} sequences was asked for; at least one is needed", sequences);
}

std::int64_t SequenceOrder::operator()(StreamState state) const {
  if (!shuffle_) return state.index;
  const std::uint64_t key = splitmix64(splitmix64(seed_) + static_cast<std::uint64_t>(state.epoch));
  return Permutation(sequences_, key)(state.index);
}

StreamState SequenceOrder::advance(StreamState state, std::int64_t count) const {
  require(state.epoch >= 0 && state.index >= 0 && state.index < sequences_,
          "reading cannot go on at sequence {} of epoch {}: the data has {} sequences; resume with the data "
          "and the sequence length that the state was saved with",
          state.index, state.epoch, sequences_);
  const std::int64_t index = state.index + count;
  return {state.epoch + index / sequences_, index % sequences_};
}

}  // namespace annulus::data
