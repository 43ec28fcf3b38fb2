#pragma once

#include <vector>

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// The smallest range of rows of `k` with all keys that some row of `q` attends to; {0, 0} when there are
/// none.
RowRange attended_keys(const Mask& mask, const PositionMap& q, const PositionMap& k);

/// The smallest range of rows of `q` with all queries that attend to some row of `k`; {0, 0} when there are
/// none.
RowRange attending_queries(const Mask& mask, const PositionMap& q, const PositionMap& k);

/// What of one shard's queries meets what of another's keys.
struct Meeting {
  RowRange q, kv;
  bool empty() const { return q.empty(); }
};

/// Which shards, and which rows of them, the mask brings together.
class Meetings {
 public:
  explicit Meetings(const Problem& problem);

  /// Some query of shard `q` attends to some key of shard `kv`.
  bool any(int q, int kv) const;
  Meeting of(int q, int kv) const;
  /// Some pair of shards `hop` places apart, q = kv + hop around the ring, meets.
  bool any_at(int hop) const;

  const Problem& problem() const { return problem_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  /// The rank `places` behind `rank` around the ring; before it when negative.
  int turned(int rank, int places) const { return ((rank + places) % ranks() + ranks()) % ranks(); }

 private:
  const PositionMap& shard(int rank) const { return shards_[static_cast<std::size_t>(rank)]; }

  Problem problem_;
  std::vector<PositionMap> shards_;
};

}  // namespace annulus::plan
