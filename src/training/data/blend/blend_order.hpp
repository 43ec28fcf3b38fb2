#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "training/data/order.hpp"

namespace annulus::data {

/// How far a set of a blend has been read.
struct SetState {
  StreamState at = {};         ///< its epoch, and sequences of that epoch
  std::int64_t sequences = 0;  ///< of this epoch, all of them; 0: as many as the set has
  std::int64_t drawn = 0;      ///< sequences of the set since the weights are what they are
  friend bool operator==(const SetState&, const SetState&) = default;
};

/// How far a blend has been read: of each set, in their order. Empty: nothing was.
using BlendState = std::vector<SetState>;

/// In which order the sequences of several sets are read. After n sequences, |n · w − c| < 1 for each set of
/// which c were read, with w its weight over the sum of all weights: each sequence has a first and a last
/// place at which it keeps that bound, and of those whose first place has come the one with the earliest last
/// place is read (pfair tasks on one processor; Baruah, Cohen, Plaxton and Varvel 1996). Inside a set
/// SequenceOrder decides. Numbers are exact.
class BlendOrder {
 public:
  struct Set {
    std::int64_t sequences = 0;
    std::int64_t weight = 1;  ///< relative to those of the others
    std::uint64_t seed = 0;   ///< of the order of its sequences
  };
  /// Sequence `index` of set `set`.
  struct Draw {
    std::size_t set = 0;
    std::int64_t index = 0;
    friend bool operator==(const Draw&, const Draw&) = default;
  };

  BlendOrder(std::vector<Set> sets, bool shuffle);

  /// The state with what it leaves out. Throws Error unless it is one of these sets.
  BlendState complete(const BlendState& state) const;

  /// The sequence that is read in `state`, which goes on to the next one. An epoch that has begun keeps its
  /// number of sequences; the next one has all that the set has by then.
  Draw next(BlendState& state) const;
  void skip(BlendState& state, std::int64_t count) const;

 private:
  std::size_t due(const BlendState& state) const;
  SequenceOrder order_of(std::size_t set, const SetState& state) const;

  std::vector<Set> sets_;
  std::int64_t weights_ = 0;  // their sum
  bool shuffle_;
};

}  // namespace annulus::data
