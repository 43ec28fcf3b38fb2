#pragma once

#include <cstdint>
#include <string_view>

namespace annulus::plan {

/// Which ranks of a grid are consecutive, and so share a node where they can.
enum class Placement : std::uint8_t {
  head_first,    ///< those of a context group, which exchange heads
  context_first  ///< those at the same place of their groups, which exchange shards
};
std::string_view name_of(Placement placement);

/// Ranks in two dimensions (USP, LoongTrain): context groups of `heads` ranks. The layout deals the sequence
/// out to the groups; the ranks of a group hold consecutive parts of its shard.
struct Grid {
  int heads = 1;  ///< ranks of a context group, a divisor of the number of ranks
  Placement placement = Placement::head_first;

  int contexts(int ranks) const { return ranks / heads; }
  /// Context group of a rank.
  int context(int rank, int ranks) const {
    return placement == Placement::head_first ? rank / heads : rank % contexts(ranks);
  }
  /// Place of a rank in its context group.
  int place(int rank, int ranks) const {
    return placement == Placement::head_first ? rank % heads : rank / contexts(ranks);
  }
  int rank(int context, int place, int ranks) const {
    return placement == Placement::head_first ? context * heads + place : place * contexts(ranks) + context;
  }
  friend bool operator==(const Grid&, const Grid&) = default;
};

}  // namespace annulus::plan
