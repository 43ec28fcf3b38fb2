#include "attention/plan/builders/head_turns.hpp"

#include <algorithm>
#include <utility>

namespace annulus::plan {
namespace {

class HeadTurns {
 public:
  HeadTurns(const Problem& problem, const HeadTurn& first, int turns)
      : of_(first.plan.step),
        steps_(first.plan.steps),
        stride_(first.last_compute + 1),
        turns_(turns),
        heads_(problem.heads / turns),
        kv_heads_(problem.kv_heads / turns) {}

  /// From one turn to the next.
  int stride() const { return stride_; }
  int steps() const { return stride_ * (turns_ - 1) + steps_; }

  Step step(int rank, int index) const {
    Step all;
    for (int turn = std::max(0, (index - steps_) / stride_); turn < turns_; ++turn) {
      const int number = index - turn * stride_;
      if (number < 0 || number >= steps_) continue;
      Step of_turn = of_(rank, number);
      for (Clear& clear : of_turn.clears) all.clears.push_back({of_heads(clear.slice, turn), clear.slot});
      add(all.sends, of_turn.sends, turn);
      add(all.receives, of_turn.receives, turn);
      for (Compute& compute : of_turn.computes) {
        compute.heads = shifted(compute.heads, turn * heads_);
        all.computes.push_back(compute);
      }
    }
    return all;
  }

 private:
  static HeadRange shifted(HeadRange heads, int by) { return {heads.begin + by, heads.end + by}; }
  TensorSlice of_heads(TensorSlice slice, int turn) const {
    slice.heads = shifted(slice.heads, turn * (is_query_side(slice.tensor) ? heads_ : kv_heads_));
    return slice;
  }
  void add(std::vector<Transfer>& to, std::vector<Transfer>& of_turn, int turn) const {
    for (Transfer& transfer : of_turn) {
      transfer.slice = of_heads(transfer.slice, turn);
      transfer.post += turn * stride_;
      transfer.wait += turn * stride_;
      to.push_back(std::move(transfer));
    }
  }

  std::function<Step(int, int)> of_;
  int steps_, stride_, turns_, heads_, kv_heads_;
};

}  // namespace

Plan in_turns(const Problem& problem, HeadTurn first, int turns) {
  const HeadTurns heads(problem, first, turns);
  Plan plan = std::move(first.plan);
  plan.problem = problem;
  plan.steps = heads.steps();
  plan.parts.turn = heads.stride();
  plan.step = [heads](int rank, int step) { return heads.step(rank, step); };
  return plan;
}

}  // namespace annulus::plan
