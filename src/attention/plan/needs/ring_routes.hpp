#pragma once

#include <array>
#include <optional>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/needs/hop_search.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {

/// Place of a shard on its way: `outer` inner rings and `inner` ranks of a ring away from its owner.
struct Hop {
  int outer = 0, inner = 0;
};

/// Hops of one ring at which a shard is needed.
struct HopSpan {
  int first = 0;  ///< first hop beyond the one that the ring begins with; 0 when there is none
  int last = -1;  ///< last hop, −1 when there is none

  /// A sum over the hops first … last has been begun at `hop` and is not complete before it.
  bool sums(int hop) const { return first > 0 && first <= hop && hop <= last; }
};

/// Which ranks need a shard that circulates on a two-level ring, and which of its rows. Inner rings are
/// groups of consecutive ranks (the nodes of a topology; all ranks for one flat ring). The outer ring leads a
/// shard from inner ring to inner ring, always to the rank with its owner's place, and from there each inner
/// ring leads it round. A rank needs the shard when the mask leaves it at least one pair with its own shard
/// of the other side; an inner ring, when one of its ranks does.
///
/// A ring leaves out the places where no rank needs the shard: each hop leads straight to the next place at
/// which some shard is needed. On zigzag shards under a window these are the neighbours on both sides.
///
/// Shards go toward higher ranks, or toward lower ones where that makes fewer hops: on contiguous shards
/// under a causal mask, later ranks need keys, earlier ranks need queries. All inner rings have the same
/// direction; the hops on the owners' own inner rings decide it. Where some positions take no part, shards go
/// in the direction in which they go when all do: ranks meet shards in the same order.
class RingRoutes {
 public:
  /// `inner_size` divides the number of ranks.
  RingRoutes(const Problem& problem, Side circulated, int inner_size);

  /// Rank at hop `hop` of a shard. Hops go as far as last_outer() and last_inner().
  int rank_at(int owner, Hop hop) const { return turned(owner, hop, 1); }
  /// Owner of the shard whose hop `hop` is `rank`.
  int owner_at(int rank, Hop hop) const { return turned(rank, hop, -1); }

  /// The rank at hop `hop` computes with `owner`'s shard.
  bool needs(int owner, Hop hop) const;
  /// The inner ring `outer` places away has a rank that needs the shard.
  bool inner_ring_needs(int owner, int outer) const;

  /// Ranks that need the shard on the inner ring `outer` places away, by inner hop.
  HopSpan inner(int owner, int outer) const;
  /// Inner rings that need the shard, by outer hop; first and last are 0 and −1 when none does.
  HopSpan outer(int owner) const { return outer_[static_cast<std::size_t>(owner)]; }

  /// The smallest range of rows of the shard that these ranks of the inner ring `outer` places away need; all
  /// rows where the mask makes parts of shards not worth while (ShardPairs::cuts).
  RowRange inner_rows(int owner, int outer, Hops ranks) const;
  /// The smallest range that these whole inner rings need.
  RowRange outer_rows(int owner, Hops inner_rings) const;

  /// Largest of all outer(owner).last.
  int last_outer() const { return outer_way_.last; }
  /// Largest of all inner(owner, outer).last, for 0 ≤ outer ≤ last_outer().
  int last_inner(int outer) const { return inner_way(outer).last; }

  int outer_size() const { return shard_pairs_.ranks() / inner_size_; }
  int inner_size() const { return inner_size_; }
  const ShardPairs& shard_pairs() const { return shard_pairs_; }
  Side circulated() const { return circulated_; }

 private:
  /// Direction of a ring, and the places at its hops.
  struct Way {
    int direction = 1;
    std::vector<int> distances = {0};  // from the owner's place in this direction, by hop
    int last = -1;                     // last hop at which some shard is needed
    int place(int hop) const { return direction * distances[static_cast<std::size_t>(hop)]; }
  };
  /// `size` places of `width` consecutive ranks each, the first one at rank `start`.
  struct Circle {
    int start, size, width;
    /// Ranks at these distances from `place`, which count modulo `size`, in at most two runs.
    std::array<RankRange, 2> ranks(int place, Hops hops) const;
  };
  /// A ring as a shard goes through it.
  struct Route {
    Circle circle;
    int place;  // the first one
    const Way* way;
    /// Ranks at these hops, and some that are left out. Those need nothing.
    std::array<RankRange, 2> ranks(Hops hops) const;
  };
  Circle inner_ring(int owner, int outer) const;
  Circle outer_ring() const { return {0, outer_size(), inner_size_}; }
  Route inner_route(int owner, int outer, const Way& way) const;
  Route outer_route(int owner, const Way& way) const;
  const Way& inner_way(int outer) const { return inner_ways_[static_cast<std::size_t>(outer)]; }

  int turned(int rank, Hop hop, int sign) const;
  bool any(int owner, const std::array<RankRange, 2>& ranks) const;
  RowRange rows(int owner, const std::array<RankRange, 2>& ranks) const;
  HopSpan span(int owner, const Route& route) const;
  /// Tells for each distance toward higher ranks whether the rank there on the inner ring `outer` hops away
  /// needs some shard.
  std::vector<bool> places_on_inner_rings(int outer) const;
  static Way way_through(const std::vector<bool>& places, int direction);
  /// The way that makes fewer hops, or that in `direction`, and the spans of all owners on it.
  template <class RouteOf>
  std::vector<HopSpan> turn(const std::vector<bool>& places, Way& way, const RouteOf& route_of,
                            std::optional<int> direction) const;

  ShardPairs shard_pairs_;
  Side circulated_;
  int inner_size_;
  Way outer_way_;
  std::vector<Way> inner_ways_ = {{}};      // by outer hop
  std::vector<HopSpan> outer_, own_group_;  // of each owner: outer(owner), inner(owner, 0)
};

}  // namespace annulus::plan
