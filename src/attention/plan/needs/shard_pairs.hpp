#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/needs/rank_meetings.hpp"
#include "attention/plan/needs/ring_window.hpp"

namespace annulus::plan {

/// The smallest range of rows of `k` with all keys that some row of `q` attends to; {0, 0} when there are
/// none.
RowRange attended_keys(const Mask& mask, const PositionMap& q, const PositionMap& k);

/// The smallest range of rows of `q` with all queries that attend to some row of `k`; {0, 0} when there are
/// none.
RowRange attending_queries(const Mask& mask, const PositionMap& q, const PositionMap& k);

/// The rows of the range that are below `count`.
RowRange first_rows(RowRange rows, std::int64_t count);

/// The smallest range with all rows of both.
RowRange hull(RowRange a, RowRange b);

/// Rows of one shard's queries and of another's keys with unmasked pairs.
struct ActiveRows {
  RowRange q, kv;
  bool empty() const { return q.empty(); }
};

/// The side of attention that a shard stands on.
enum class Side : std::uint8_t { query, key };

/// Ranks begin … end − 1.
struct RankRange {
  int begin = 0, end = 0;
  constexpr int size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
};

/// Shard pairs with unmasked entries, and the rows involved.
///
/// Questions about many ranks are answered for all their rows at once (Layout::shards), so that halving
/// ranges of ranks finds the active pairs without asking every pair of ranks.
class ShardPairs {
 public:
  explicit ShardPairs(const Problem& problem);

  /// Some query of shard `q` attends to some key of shard `kv`.
  bool any(int q, int kv) const;
  ActiveRows of(int q, int kv) const;
  /// What `of` gives, without the gaps between ranges of keys (is_gap), where these are known: each range
  /// with the queries that attend to it. Elsewhere the one part, or none. No part is empty.
  std::vector<ActiveRows> parts(int q, int kv) const;

  /// `owner`'s shard on side `side` meets the other side of some of the ranks.
  bool any(Side side, int owner, RankRange ranks) const;
  /// The smallest range of rows of `owner`'s shard, on side `side`, that meet the other side of the ranks.
  RowRange rows(Side side, int owner, RankRange ranks) const;

  RowRange all_rows(int owner) const { return {0, shard(owner).count}; }

  /// Every pair of shards is known to be active, as under full and most causal masks.
  bool all_active() const { return all_active_; }
  /// The mask may leave out rows of a shard that are worth not sending: it has a window,
  /// documents or blocks.
  bool cuts() const { return cuts_; }
  /// No shard has more than one row more than another one.
  bool even() const { return even_; }

  /// Whether, at each hop, some pair of shards `hop` places apart, q = kv + hop around the ring, meets.
  std::vector<bool> hops() const;
  /// The most parts that such a pair has, at each hop.
  std::vector<int> most_parts() const;

  const Problem& problem() const { return problem_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  /// The rank `places` behind `rank` around the ring; before it when negative.
  int turned(int rank, int places) const { return ((rank + places) % ranks() + ranks()) % ranks(); }

 private:
  const PositionMap& shard(int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  bool active_everywhere() const;
  template <class Visit>
  bool visit_until(RankRange ranks, const Visit& visit) const;

  Problem problem_;
  std::vector<PositionMap> shards_;
  /// Where some positions take no part and the mask is no band: of all of them. The first key that a shard's
  /// queries attend to may be one of a later query; ranges begin there, as without the positions, so that
  /// kernels sum in the same order.
  std::shared_ptr<const ShardPairs> of_all_positions_;
  // Where one of these is known, it answers everything but rows().
  RingWindows near_;
  RankMeetings meetings_;
  bool all_active_ = false, cuts_ = false, even_ = false;
};

}  // namespace annulus::plan
