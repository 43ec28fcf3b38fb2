#include <annulus/attention/plan/schedules.hpp>

#include <memory>
#include <vector>

#include "attention/plan/builders/parts.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {
namespace {

constexpr Tensor keys[] = {Tensor::k, Tensor::v};
constexpr Tensor key_gradients[] = {Tensor::dk, Tensor::dv};

/// Step 0: K and V go from everybody to everybody who needs them, while each rank computes within its own
/// shard. Then the remote shards: all in step 1 of a forward; one a step in a backward, where each rank at
/// the same time returns the dK and dV of the step before (a reduce-scatter by pairwise exchange), so that
/// two partial sums and one landing buffer suffice.
///
/// With the layout `balanced` ranks compute equally much altogether, and not in each step. There nobody waits
/// for returned gradients before the last step. Each round has buffers of its own then, which have little to
/// hold. Where a rank needs keys from several places of a shard, each range is a round of its own.
class AllGather {
 public:
  AllGather(const Problem& problem, Pass pass)
      : shard_pairs_(problem), pass_(pass), waits_last_(problem.layout.kind() == Layout::Kind::balanced) {
    const std::vector<int> most_parts = shard_pairs_.most_parts();
    for (int hop = 1; hop < problem.ranks(); ++hop) {
      const int parts = most_parts[static_cast<std::size_t>(hop)];
      if (parts > 0) first_rounds_.push_back(rounds());
      for (int part = 0; part < parts; ++part) rounds_.push_back({hop, static_cast<std::size_t>(part)});
    }
    if (rounds_.empty()) {
      steps_ = most_parts[0] > 0 ? 1 : 0;
    } else {
      steps_ = pass == Pass::forward ? 2 : rounds() + 3;
    }
  }

  int steps() const { return steps_; }

  /// All ranks do the same where everybody needs everything.
  int period() const {
    const MaskRule rule = problem().mask.rule();
    const bool everything =
        shard_pairs_.all_active() && !shard_pairs_.cuts() && rule.right >= rule.tokens - 1;
    return everything && shard_pairs_.even() ? 1 : 0;
  }

  static bool queries_stay() { return true; }

  Step step(int rank, int t) const {
    Step step;
    if (t == 0) {
      gather(step, rank);
      if (shard_pairs_.any(rank, rank))
        step.computes.push_back(compute(problem(), rank, rank, shard_pairs_.of(rank, rank)));
    } else if (pass_ == Pass::forward) {
      for (int round : first_rounds_) {
        for (const ActiveRows& active : shard_pairs_.parts(rank, owner(rank, round)))
          compute_foreign(step, rank, active, round++);
      }
    } else {
      if (t >= 2 && t - 2 < rounds()) return_gradients(step, rank, t - 2, t);
      if (t - 1 < rounds()) {
        const ActiveRows active = active_rows(rank, owner(rank, t - 1), t - 1);
        if (!active.empty()) compute_foreign(step, rank, active, t - 1);
      }
    }
    return step;
  }

 private:
  static Slot gathered_slot(int round) { return 1 + round; }
  Slot partial_slot(int round) const { return 1 + (waits_last_ ? round : round % 2); }
  /// Where gradients land that return to this rank.
  Slot landing_slot(int round) const { return waits_last_ ? 1 + rounds() + round : 3; }
  Transfer returned(Transfer transfer) const {
    if (waits_last_) transfer.wait = steps_ - 1;
    return transfer;
  }

  /// A part of the keys that travel `hop` places.
  struct Round {
    int hop = 0;
    std::size_t part = 0;
  };

  const Problem& problem() const { return shard_pairs_.problem(); }
  int rounds() const { return static_cast<int>(rounds_.size()); }
  int hop(int round) const { return rounds_[static_cast<std::size_t>(round)].hop; }
  /// Owner of the keys that a rank works with in a round, and the rank that works with a rank's own keys.
  int owner(int rank, int round) const { return shard_pairs_.turned(rank, -hop(round)); }
  int user(int rank, int round) const { return shard_pairs_.turned(rank, hop(round)); }
  /// What the shards have to do with each other in a round.
  ActiveRows active_rows(int q, int kv, int round) const {
    const std::vector<ActiveRows> parts = shard_pairs_.parts(q, kv);
    const std::size_t part = rounds_[static_cast<std::size_t>(round)].part;
    return part < parts.size() ? parts[part] : ActiveRows{};
  }

  void gather(Step& step, int rank) const {
    for (int round : first_rounds_) {
      const int to = user(rank, round), from = owner(rank, round);
      for (const ActiveRows& there : shard_pairs_.parts(to, rank)) {
        for (const Tensor tensor : keys)
          step.sends.push_back(transfer(problem(), part(problem(), tensor, rank, there.kv),
                                        Channel::activations, to, local_slot, 0));
      }
      for (const ActiveRows& here : shard_pairs_.parts(rank, from)) {
        const Slot slot = gathered_slot(round++);
        for (const Tensor tensor : keys)
          step.receives.push_back(transfer(problem(), part(problem(), tensor, from, here.kv),
                                           Channel::activations, from, slot, 0));
      }
    }
  }

  void compute_foreign(Step& step, int rank, const ActiveRows& active, int round) const {
    const int from = owner(rank, round);
    Compute remote = compute(problem(), rank, from, active);
    remote.kv_slot = gathered_slot(round);
    if (pass_ == Pass::backward) {
      remote.kv_grad_slot = partial_slot(round);
      for (const Tensor tensor : key_gradients) {
        step.clears.push_back({part(problem(), tensor, from, active.kv), partial_slot(round)});
      }
    }
    step.computes.push_back(remote);
  }

  void return_gradients(Step& step, int rank, int round, int t) const {
    const int to = owner(rank, round), from = user(rank, round);
    const ActiveRows here = active_rows(rank, to, round), there = active_rows(from, rank, round);
    for (const Tensor tensor : key_gradients) {
      if (!here.empty()) {
        step.sends.push_back(returned(transfer(problem(), part(problem(), tensor, to, here.kv),
                                               Channel::gradients, to, partial_slot(round), t)));
      }
      if (!there.empty()) {
        step.receives.push_back(
            return_to_owner(returned(transfer(problem(), part(problem(), tensor, rank, there.kv),
                                              Channel::gradients, from, landing_slot(round), t)),
                            OnReceive::add));
      }
    }
  }

  ShardPairs shard_pairs_;
  Pass pass_;
  bool waits_last_;
  std::vector<Round> rounds_;      // hops at which some pair of shards meets, with the parts of any
  std::vector<int> first_rounds_;  // of each hop
  int steps_ = 0;
};

}  // namespace

Plan make_all_gather(const Problem& problem, Pass pass) {
  problem.check();
  return lazy_plan("all-gather", problem, pass, std::make_shared<const AllGather>(problem, pass));
}

}  // namespace annulus::plan
