#include "attention/plan/builders/tail.hpp"

#include <algorithm>
#include <utility>

namespace annulus::plan {
namespace {

constexpr int most_parts = 4;
constexpr std::int64_t least_bytes = std::int64_t{16} << 20;

class Tail {
 public:
  Tail(const Plan& plan, int last_compute, int parts)
      : of_(plan.step), problem_(plan.problem), steps_(plan.steps), last_(last_compute), parts_(parts) {}

  Step step(int rank, int index) const {
    Step step;
    if (index <= last_) step = of_(rank, index);
    if (index == 0 && defers()) step.computes = computes(rank, 0, 0, parts_ - 1);
    if (index < last_) return step;
    if (index < last_ + parts_) step.computes = computes(rank, last_, index - last_, index - last_ + 1);
    if (index == last_ + parts_ && defers()) step.computes = computes(rank, 0, parts_ - 1, parts_);
    // A part is as many steps behind the plan as there are parts before it. Both sides of a message list them
    // alike.
    for (int part = 0; part < parts_; ++part) {
      const int from = index - part;
      if (from <= last_ || from >= steps_) continue;
      const Step whole = of_(rank, from);
      add_part(step.sends, whole.sends, part);
      add_part(step.receives, whole.receives, part);
    }
    return step;
  }

  bool defers() const { return last_ > 0; }

 private:
  /// The heads of the parts from `first` to before `end`.
  HeadRange kv_heads(int first, int end) const {
    return {problem_.kv_heads * first / parts_, problem_.kv_heads * end / parts_};
  }
  HeadRange query_heads(int first, int end) const {
    const HeadRange heads = kv_heads(first, end);
    return {heads.begin * problem_.group(), heads.end * problem_.group()};
  }

  /// What step `index` of the whole plan computes, of the parts from `first` to before `end`.
  std::vector<Compute> computes(int rank, int index, int first, int end) const {
    std::vector<Compute> computes = of_(rank, index).computes;
    for (Compute& compute : computes) compute.heads = query_heads(first, end);
    return computes;
  }

  void add_part(std::vector<Transfer>& to, const std::vector<Transfer>& whole, int part) const {
    for (Transfer transfer : whole) {
      transfer.slice.heads =
          is_query_side(transfer.slice.tensor) ? query_heads(part, part + 1) : kv_heads(part, part + 1);
      transfer.post += part;
      transfer.wait += part;
      to.push_back(std::move(transfer));
    }
  }

  std::function<Step(int, int)> of_;
  Problem problem_;
  int steps_, last_, parts_;
};

}  // namespace

int tail_parts(const Problem& problem, Tensor gradient) {
  const std::int64_t bytes = problem.elements(problem.whole(gradient, 0)) *
                             static_cast<std::int64_t>(size_of(problem.wire(gradient)));
  const int most = std::min(most_parts, problem.kv_heads);
  return static_cast<int>(std::clamp<std::int64_t>(bytes / least_bytes, 1, most));
}

Plan overlap_tail(const Plan& plan, int last_compute, int parts) {
  const Tail tail(plan, last_compute, parts);
  Plan result = plan;
  result.steps = plan.steps + parts - 1;
  result.parts = {last_compute, parts, tail.defers()};
  result.step = [tail](int rank, int index) { return tail.step(rank, index); };
  return result;
}

}  // namespace annulus::plan
