#include "attention/plan/builders/timetable.hpp"

#include <algorithm>
#include <utility>

namespace annulus::plan {

Timetable::Timetable(std::vector<int> rounds, int inner_size, SumTiming sums)
    : rounds_(std::move(rounds)), starts_{0}, inner_size_(inner_size), sums_(sums) {
  rounds_.push_back(1);  // sums of the last loop travel as if another one followed
  for (int loop = 0; loop < static_cast<int>(rounds_.size()); ++loop) {
    int steps = stride() * rounds_[static_cast<std::size_t>(loop)];
    // The sums of loop 1 are the first to leave for another inner ring that adds to them: lag() steps after
    // the beginning of loop 2, at the end of which they arrive.
    if (sums_ == SumTiming::overlapped && loop >= 2) steps = std::max(steps, lag() + 1);
    // The sums of the last round return to the rank of their owner's place before they leave the inner ring.
    if (sums_ == SumTiming::alone && inner_size_ > 1) ++steps;
    starts_.push_back(starts_.back() + steps);
  }
}

int Timetable::lag() const {
  if (sums_ == SumTiming::alone) return -1;
  return inner_size_ > 1 ? 1 : 0;  // a ring of one rank has its sums as soon as it has computed
}

std::optional<Hop> Timetable::round_computed(int step) const {
  if (step < 0 || step >= start(loops())) return std::nullopt;
  const auto next = std::ranges::upper_bound(starts_, step);
  const int loop = static_cast<int>(next - starts_.begin()) - 1;
  const Hop round{loop, (step - start(loop)) / stride()};
  const bool computes =
      computing(round) == step && round.inner < rounds_[static_cast<std::size_t>(round.outer)];
  return computes ? std::optional(round) : std::nullopt;
}

std::optional<int> Timetable::loop_begun(int step) const {
  const std::optional<Hop> round = round_computed(step);
  return round && round->inner == 0 ? std::optional(round->outer) : std::nullopt;
}

std::optional<int> Timetable::loop_summed(int step) const {
  const auto next = std::ranges::lower_bound(starts_, step - lag());
  if (next == starts_.end() || *next != step - lag()) return std::nullopt;
  const int loop = static_cast<int>(next - starts_.begin()) - 1;
  return loop >= 0 && loop < loops() ? std::optional(loop) : std::nullopt;
}

}  // namespace annulus::plan
