#pragma once

#include <cstdint>
#include <string_view>

namespace annulus::plan {

/// Which ranks of a grid are consecutive, and so share a node where they can.
enum class Placement : std::uint8_t {
  head_first,    ///< those of a Ulysses group, which exchange heads
  context_first  ///< those of equal Ulysses rank, which form a ring and exchange shards
};
std::string_view name_of(Placement placement);

/// Ranks in two dimensions (USP, LoongTrain): Ulysses groups of `ulysses_degree` ranks, which are
/// head-parallel, and rings between them. The layout deals the sequence out to the Ulysses groups; the ranks
/// of a group hold consecutive parts of its shard.
struct Grid {
  int ulysses_degree = 1;  ///< ranks of a Ulysses group, a divisor of the number of ranks
  Placement placement = Placement::head_first;

  /// Ranks of a ring, which is the number of Ulysses groups.
  int ring_degree(int ranks) const { return ranks / ulysses_degree; }
  /// Place of a rank in its ring, which is the index of its Ulysses group.
  int ring_rank(int rank, int ranks) const {
    return placement == Placement::head_first ? rank / ulysses_degree : rank % ring_degree(ranks);
  }
  /// Place of a rank in its Ulysses group.
  int ulysses_rank(int rank, int ranks) const {
    return placement == Placement::head_first ? rank % ulysses_degree : rank / ring_degree(ranks);
  }
  int rank(int ring_rank, int ulysses_rank, int ranks) const {
    return placement == Placement::head_first ? ring_rank * ulysses_degree + ulysses_rank
                                              : ulysses_rank * ring_degree(ranks) + ring_rank;
  }
  friend bool operator==(const Grid&, const Grid&) = default;
};

}  // namespace annulus::plan
