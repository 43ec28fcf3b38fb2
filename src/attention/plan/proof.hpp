#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

/// A plan proved rank by rank: what one rank's steps show alone, in memory that does not grow with the number
/// of steps, and sums by which ranks see whether their steps fit together. validate() proves plans with it,
/// the executor the programs that run. docs/schedules.md says why this is a proof.
namespace annulus::plan {

/// What the proofs of all ranks have in common.
struct Premises {
  /// `representatives`: the ranks 0 … representatives − 1 stand for all (period.hpp).
  Premises(const Problem& problem, Pass pass, int steps, int representatives);

  Problem problem;
  Pass pass = Pass::forward;
  int steps = 0, representatives = 0;
  std::vector<PositionMap> shards;          ///< [rank]
  std::vector<std::uint64_t> head_weights;  ///< [n]: of the first n heads (ComputeSum)

  int ranks() const { return static_cast<int>(shards.size()); }
  const PositionMap& shard(int rank) const { return shards[static_cast<std::size_t>(rank)]; }
  TensorSlice whole(Tensor tensor, int owner) const;
};

/// Fingerprints of messages, summed up modulo 2⁶⁴ over those from one rank to another. What leaves equals
/// what is received, in equal order on each channel, when the sums do (but for one case in some 2⁶⁰).
struct MessageSum {
  std::uint64_t contents = 0;  ///< order, slices and wire types
  std::uint64_t posts = 0;     ///< order, slices, wire types, and the steps in which both ends are posted
  MessageSum& operator+=(const MessageSum& other);
  MessageSum& operator-=(const MessageSum& other);
  friend bool operator==(const MessageSum&, const MessageSum&) = default;
};

/// What is computed with the queries of one shard.
struct ComputeSum {
  std::uint64_t weight = 0;   ///< of each (shard of keys, head), modulo 2⁶⁴
  std::int64_t computes = 0;  ///< how many
  std::int64_t partial = 0;   ///< computes that leave unmasked pairs of their two shards to other ranks
  ComputeSum& operator+=(const ComputeSum& other);
  friend bool operator==(const ComputeSum&, const ComputeSum&) = default;
};

/// The `weight` of every shard of keys of which the mask leaves something to the queries of `owner`, for all
/// heads. A shard whose computes have this weight, none of them partial, is computed exactly once. One that
/// has not may be, too: its computes are to be looked at one by one.
std::uint64_t expected_weight(const Premises& premises, int owner);

/// What the steps of one rank show.
struct RankFindings {
  /// What is wrong, each entry naming rank, step and slice. After the first entry in `malformed` (indices and
  /// ranges) the rank's steps are not looked at any further, and nothing below has a meaning.
  std::vector<std::string> malformed, violations;
  std::vector<MessageSum> sent, received;  ///< [rank to which, from which]
  std::vector<ComputeSum> computed;        ///< [owner of the queries]
};

/// The steps of one rank, in order.
///
/// Shown of each rank alone: indices and ranges are sound; what is read is in its slot, by the labels of the
/// messages; nothing is overwritten while it is read, sent or landed in; and sums are conserved. A
/// contribution is in one place at a time: it moves with the message that carries its sum, is never sent
/// twice, never overwritten, and rests at the end in the local buffer of its owner. (O, LSE) move together.
class RankProof {
 public:
  RankProof(const Premises& premises, int rank);
  ~RankProof();
  RankProof(const RankProof&) = delete;
  RankProof& operator=(const RankProof&) = delete;

  /// The next step.
  void add(const Step& step);
  /// Ends the proof, after the last step.
  RankFindings finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace annulus::plan
