#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace annulus::data {

/// A pseudo-random permutation of 0 … size − 1 that needs no memory: a Feistel network over the next power of
/// four, walked until it falls below size (the cycle walking of Black and Rogaway, CT-RSA 2002). The same on
/// every machine.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t key);
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;
  std::int64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

/// How far reading has come: `index` sequences of epoch `epoch` are read.
struct StreamState {
  std::int64_t epoch = 0, index = 0;
  friend bool operator==(const StreamState&, const StreamState&) = default;
};

/// Deals sequences to `groups` groups, as many to each, which are to have as much work: those with more work
/// first, of equal ones the earlier, each to the group that has the least work so far and room, of equal ones
/// the first (longest processing time first; Graham 1969). The group of each sequence. `work` has a multiple
/// of `groups`.
std::vector<int> deal(std::span<const std::int64_t> work, int groups);

/// In which order the sequences of a data set are read, epoch after epoch without a gap: every sequence once
/// an epoch.
class SequenceOrder {
 public:
  /// Orders the sequences: with `shuffle` each epoch has an order of its own, which `seed` determines;
  /// without, sequences come as stored.
  SequenceOrder(std::int64_t sequences, std::uint64_t seed, bool shuffle);

  /// The sequence that is read in `state`.
  std::int64_t operator()(StreamState state) const;

  /// The state after `count` further sequences. Throws Error when `state` is of a larger data set.
  StreamState advance(StreamState state, std::int64_t count) const;

 private:
  std::int64_t sequences_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace annulus::data
