#pragma once

#include <cstdint>
#include <vector>

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// The side of attention whose shards travel.
enum class Side : std::uint8_t { query, key };

/// Place of a shard on its way: `outer` groups and `inner` ranks of a group away from its owner.
struct Hop {
  int outer = 0, inner = 0;
};

/// Hops of one ring at which a shard is needed.
struct Span {
  int first = 0;  ///< first hop beyond the one that the ring begins with; 0 when there is none
  int last = -1;  ///< last hop, −1 when there is none

  /// A sum over the hops first … last has been begun at `hop` and is not complete before it.
  bool sums(int hop) const { return first > 0 && first <= hop && hop <= last; }
};

/// Who needs a shard that goes round a ring of rings. The ranks form groups of consecutive ranks (the nodes
/// of a topology; all ranks for one flat ring). A shard goes from group to group, always to the rank with its
/// owner's place in the group (its rail), and from there round each group. A rank needs the shard when the
/// mask leaves it at least one pair with its own shard of the other side; a group, when one of its ranks
/// does.
///
/// A ring turns r → r + 1, or r → r − 1 where that makes fewer hops: on contiguous shards under a causal
/// mask, keys are needed by later ranks, queries by earlier ones. The inner rings all turn alike; the hops of
/// the owners' own groups decide.
class Reach {
 public:
  /// `group_size` divides the number of ranks.
  Reach(const Problem& problem, Side travelling, int group_size);

  /// Rank at hop `hop` of a shard.
  int rank_at(int owner, Hop hop) const { return turned(owner, hop, 1); }
  /// Owner of the shard whose hop `hop` is `rank`.
  int owner_at(int rank, Hop hop) const { return turned(rank, hop, -1); }

  /// The rank at hop `hop` computes with `owner`'s shard.
  bool needs(int owner, Hop hop) const;
  /// The group `outer` places away has a rank that needs the shard.
  bool group_needs(int owner, int outer) const { return inner(owner, outer).last >= 0; }

  /// Ranks that need the shard in the group `outer` places away, by inner hop.
  Span inner(int owner, int outer) const;
  /// Groups that need the shard, by outer hop; first and last are 0 and −1 when nobody does.
  Span outer(int owner) const { return outer_[static_cast<std::size_t>(owner)]; }

  int groups() const { return ranks() / group_size_; }
  int group_size() const { return group_size_; }
  const Problem& problem() const { return problem_; }
  Side travelling() const { return travelling_; }

 private:
  int ranks() const { return static_cast<int>(shards_.size()); }
  int turned(int rank, Hop hop, int sign) const;
  bool has_pairs(int owner, Hop hop) const;
  template <class Needs>
  static Span span_of(int size, const Needs& needs);
  Span find_inner(int owner, int outer) const;
  void turn_inner_rings();
  void turn_outer_ring();

  Problem problem_;
  Side travelling_;
  int group_size_;
  std::vector<PositionMap> shards_;
  int outer_direction_ = 1, inner_direction_ = 1;
  std::vector<Span> outer_;               // of each owner
  std::vector<std::vector<Span>> inner_;  // of each owner, as far as it travels
};

}  // namespace annulus::plan
