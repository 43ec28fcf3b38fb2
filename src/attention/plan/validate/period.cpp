#include <algorithm>

#include "attention/plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// Entries of steps that are compared when they are too many to compare them all; besides, two whole periods
/// are.
constexpr std::int64_t most_entries = 1'000'000;

class Repetition {
 public:
  Repetition(const ProofScope& scope, std::int64_t entries, Diagnostics& diagnostics)
      : scope_(scope),
        entries_(entries),
        diagnostics_(diagnostics),
        periods_(scope.ranks() / scope.representatives()) {}

  void check() {
    const int steps = scope_.plan.steps;
    if (periods_ == 1 || steps == 0) return;
    if (entries_ * (periods_ - 1) <= most_entries) {
      for (int step = 0; step < steps; ++step) check(step, 1, 1);
      return;
    }
    for (int step = 0; step < steps; ++step) check(step, 1, std::max(1, periods_ - 2));
    // The first and the last steps, and one in between, of as many ranks as possible.
    for (const int step : {0, steps / 2, steps - 1}) {
      std::int64_t entries = 0;
      for (int rank = 0; rank < scope_.representatives(); ++rank)
        entries += entries_of(scope_.plan.step(rank, step));
      check(step, 1, static_cast<int>(entries * periods_ * 3 / most_entries + 1));
    }
  }

 private:
  /// A step of the ranks of every `stride`-th period from `first` on.
  void check(int step, int first, int stride) {
    for (int rank = 0; rank < scope_.representatives(); ++rank) {
      const Step original = scope_.plan.step(rank, step);
      for (int period = first; period < periods_; period += stride) {
        const int by = period * scope_.representatives();
        if (scope_.plan.step(rank + by, step) == scope_.shift.step(original, by)) continue;
        diagnostics_.add(
            "rank {}, step {}: is not what rank {} does, {} ranks on, though the plan has a period of {}",
            rank + by, step, rank, by, scope_.plan.period);
      }
    }
  }

  const ProofScope& scope_;
  std::int64_t entries_;
  Diagnostics& diagnostics_;
  int periods_;
};

}  // namespace

void check_period(const ProofScope& scope, std::int64_t entries, Diagnostics& diagnostics) {
  Repetition(scope, entries, diagnostics).check();
}

}  // namespace annulus::plan::validation
