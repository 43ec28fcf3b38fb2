#pragma once

#include <cstdint>
#include <vector>

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// The side of attention whose shards travel.
enum class Side : std::uint8_t { query, key };

/// Who needs a shard that goes round the ring. Hop h of a shard is the rank h places from its owner; it
/// needs the shard when the mask leaves it at least one pair with its own shard of the other side.
///
/// The ring turns r → r + 1, or r → r − 1 where that makes fewer hops in all: on contiguous shards under a
/// causal mask, keys are needed by later ranks, queries by earlier ones.
class Reach {
 public:
  Reach(const Problem& problem, Side travelling);

  /// Rank at hop `hop` of a shard.
  int rank_at(int owner, int hop) const { return turned(owner, direction_ * hop); }
  /// Owner of the shard whose hop `hop` is `rank`.
  int owner_at(int rank, int hop) const { return turned(rank, -direction_ * hop); }

  /// The rank at hop `hop` computes with `owner`'s shard.
  bool needs(int owner, int hop) const;
  /// First hop beyond the owner itself that needs the shard; 0 when none does.
  int first(int owner) const { return first_[static_cast<std::size_t>(owner)]; }
  /// Last hop that needs the shard, 0 when only its owner does, −1 when nobody does.
  int last(int owner) const { return last_[static_cast<std::size_t>(owner)]; }

  const Problem& problem() const { return problem_; }
  Side travelling() const { return travelling_; }

 private:
  int ranks() const { return static_cast<int>(shards_.size()); }
  int turned(int rank, int places) const { return (rank + places % ranks() + ranks()) % ranks(); }
  bool has_pairs(int owner, int hop) const;
  void find_hops(int direction);
  std::int64_t total_hops() const;

  Problem problem_;
  Side travelling_;
  std::vector<PositionMap> shards_;
  int direction_ = 1;
  std::vector<int> first_, last_;  // of each owner, in this direction
};

}  // namespace annulus::plan
