#include <annulus/attention/plan/schedules.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attention/plan/builders/parts.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {
namespace {

/// What a rank computes in a round. A worker has the queries and fetches the keys; a helper has the keys and
/// computes for a worker further back, which sends it the queries.
struct Task {
  int q = 0, kv = 0;
  bool helping = false;
  ActiveRows active;
};

/// Round of hop t: every rank works with what the rank t places before it (around the ring) owns. That rank
/// holds earlier tokens, so its keys come, or (where the ring closes) later ones, so its queries come. Thus a
/// round does the pairs of shards t apart and, with the ranks that would be idle, those P − t apart; round 0
/// is each shard with itself, and P/2 rounds do all. What a round needs travels during the round before, its
/// results during the round behind, always directly between the two ranks.
class HelperWorker {
 public:
  HelperWorker(const Problem& problem, Pass pass) : shard_pairs_(problem), pass_(pass) {
    const int ranks = problem.ranks();
    const std::vector<bool> meets = shard_pairs_.hops();
    // Rounds are those of all positions: the round in which a result returns decides what it is merged into.
    const std::vector<bool> all =
        problem.positions == 0 ? meets : ShardPairs(problem.of_all_positions()).hops();
    const auto works = [&](const std::vector<bool>& at, int hop) {
      return at[static_cast<std::size_t>(hop)];
    };
    const auto helps = [&](const std::vector<bool>& at, int hop) {
      return at[static_cast<std::size_t>(ranks - hop)] && 2 * hop != ranks;
    };
    hops_.push_back(0);
    std::size_t used = meets[0] ? 1 : 0;  // rounds up to the last one with a task
    for (int hop = 1; 2 * hop <= ranks; ++hop) {
      if (!works(all, hop) && !helps(all, hop)) continue;
      hops_.push_back(hop);
      if (!works(meets, hop) && !helps(meets, hop)) continue;
      used = hops_.size();
      // What workers compute stays in a forward.
      const bool has_results = helps(meets, hop) || pass == Pass::backward;
      if (has_results) steps_ = rounds() + 2;
    }
    hops_.resize(std::max<std::size_t>(used, 1));
    steps_ = std::max(steps_, static_cast<int>(used));
  }

  int steps() const { return steps_; }
  int period() const { return 0; }  // first and last ranks have different tasks

  Step step(int rank, int t) const {
    Step step;
    if (t + 1 < rounds()) bring_inputs(step, rank, t);
    if (t - 1 >= 1 && t - 1 < rounds()) return_results(step, rank, t);
    if (t < rounds()) run(step, rank, t);
    return step;
  }

 private:
  static constexpr Slot landing = 3;  // of results that return to this rank

  /// The slot of what a round needs from elsewhere and of what it gives back.
  static Slot slot(int round) { return 1 + round % 2; }

  const Problem& problem() const { return shard_pairs_.problem(); }
  int rounds() const { return static_cast<int>(hops_.size()); }
  int before(int rank, int round) const { return shard_pairs_.turned(rank, -hop(round)); }
  int behind(int rank, int round) const { return shard_pairs_.turned(rank, hop(round)); }
  int hop(int round) const { return hops_[static_cast<std::size_t>(round)]; }

  std::optional<Task> task(int rank, int round) const {
    const int other = before(rank, round);
    Task task{std::max(rank, other), std::min(rank, other), other > rank, {}};
    // Half way round, the rank t places before and the one t places behind are the same: the worker does it.
    if (task.helping && 2 * hop(round) == problem().ranks()) return std::nullopt;
    task.active = shard_pairs_.of(task.q, task.kv);
    if (task.active.empty()) return std::nullopt;
    return task;
  }

  std::vector<Tensor> inputs(const Task& task) const {
    if (!task.helping) return {Tensor::k, Tensor::v};
    if (pass_ == Pass::forward) return {Tensor::q};
    return {Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d};
  }
  std::vector<Tensor> results(const Task& task) const {
    if (pass_ == Pass::forward)
      return task.helping ? std::vector{Tensor::o, Tensor::lse} : std::vector<Tensor>{};
    return task.helping ? std::vector{Tensor::dq} : std::vector{Tensor::dk, Tensor::dv};
  }

  TensorSlice slice(const Task& task, Tensor tensor) const {
    return is_query_side(tensor) ? part(problem(), tensor, task.q, task.active.q)
                                 : part(problem(), tensor, task.kv, task.active.kv);
  }

  /// Brings the inputs of the next round.
  void bring_inputs(Step& step, int rank, int t) const {
    const int round = t + 1, from = before(rank, round), to = behind(rank, round);
    if (const auto theirs = task(to, round)) {
      for (const Tensor tensor : inputs(*theirs)) {
        step.sends.push_back(
            transfer(problem(), slice(*theirs, tensor), Channel::activations, to, local_slot, t));
      }
    }
    if (const auto mine = task(rank, round)) {
      for (const Tensor tensor : inputs(*mine)) {
        step.receives.push_back(
            transfer(problem(), slice(*mine, tensor), Channel::activations, from, slot(round), t));
      }
    }
  }

  /// Returns the results of the round before.
  void return_results(Step& step, int rank, int t) const {
    const int round = t - 1, to = before(rank, round), from = behind(rank, round);
    if (const auto mine = task(rank, round)) {
      for (const Tensor tensor : results(*mine)) {
        step.sends.push_back(
            transfer(problem(), slice(*mine, tensor), Channel::gradients, to, slot(round), t));
      }
    }
    if (const auto theirs = task(from, round)) {
      for (const Tensor tensor : results(*theirs)) {
        step.receives.push_back(
            return_to_owner(transfer(problem(), slice(*theirs, tensor), Channel::gradients, from, landing, t),
                            pass_ == Pass::forward ? OnReceive::merge : OnReceive::add));
      }
    }
  }

  void run(Step& step, int rank, int round) const {
    const auto task = this->task(rank, round);
    if (!task) return;
    Compute work = compute(problem(), task->q, task->kv, task->active);
    if (round > 0) {
      (task->helping ? work.q_slot : work.kv_slot) = slot(round);
      (task->helping ? work.out_slot : work.kv_grad_slot) = slot(round);
      for (const Tensor tensor : results(*task)) step.clears.push_back({slice(*task, tensor), slot(round)});
    }
    step.computes.push_back(work);
  }

  ShardPairs shard_pairs_;
  Pass pass_;
  std::vector<int> hops_;  // of the rounds
  int steps_ = 0;
};

void check(const Problem& problem) {
  if (problem.ranks() == 1) return;
  const bool causal = problem.mask.rule().right == 0;
  std::int64_t rows = 0;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const PositionMap shard = problem.owned(rank);
    require(shard.empty() || (shard.front() == rows && shard.back() == rows + shard.count - 1),
            "schedule helper-worker: ranks help those that hold later tokens, but layout {} is no layout of "
            "consecutive intervals: use {}schedule ring or burst",
            problem.layout.to_string(), causal ? "layout contiguous, or " : "");
    rows += shard.count;
  }
  require(causal,
          "schedule helper-worker: ranks help those that hold later tokens, but under mask {} earlier tokens "
          "attend to later ones: join causal to the mask, or use schedule ring or burst",
          problem.mask.to_string());
}

}  // namespace

Plan make_helper_worker(const Problem& problem, Pass pass) {
  problem.check();
  check(problem);
  return lazy_plan("helper-worker", problem, pass, std::make_shared<const HelperWorker>(problem, pass));
}

}  // namespace annulus::plan
