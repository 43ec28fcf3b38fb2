#include <algorithm>

#include "plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// Entries of steps that are compared when they are too many to compare them all; besides, two whole periods
/// are.
constexpr std::int64_t most_entries = 1'000'000;

class Repetition {
 public:
  Repetition(const Script& script, Findings& findings)
      : script_(script), findings_(findings), periods_(script.ranks() / script.walked()) {}

  void check() {
    if (periods_ == 1 || script_.plan.steps == 0) return;
    std::int64_t entries = 0;
    for (const auto& rank : script_.steps) {
      for (const Step& step : rank) entries += size(step);
    }
    if (entries * (periods_ - 1) <= most_entries) {
      for (int period = 1; period < periods_; ++period) check_steps(period);
      return;
    }
    for (const int period : {1, periods_ - 1}) check_steps(period);
    // The first and the last steps, and one in between, of as many ranks as possible.
    for (const int step : {0, script_.plan.steps / 2, script_.plan.steps - 1}) check_ranks(step);
  }

 private:
  static std::int64_t size(const Step& step) {
    return 1 + std::ssize(step.clears) + std::ssize(step.sends) + std::ssize(step.receives) +
           std::ssize(step.computes);
  }

  void check_steps(int period) {
    for (int rank = 0; rank < script_.walked(); ++rank) {
      for (int step = 0; step < script_.plan.steps; ++step) check(rank, period, step);
    }
  }

  void check_ranks(int step) {
    std::int64_t entries = 0;
    for (int rank = 0; rank < script_.walked(); ++rank) entries += size(script_.at(rank, step));
    const auto stride = static_cast<int>(entries * periods_ * 3 / most_entries + 1);
    for (int period = 1; period < periods_; period += stride) {
      for (int rank = 0; rank < script_.walked(); ++rank) check(rank, period, step);
    }
  }

  void check(int rank, int period, int step) {
    const int by = period * script_.walked();
    if (script_.plan.step(rank + by, step) == script_.translation.step(script_.at(rank, step), by)) return;
    findings_.add(
        "rank {}, step {}: is not what rank {} does, {} ranks on, though the plan has a period of {}",
        rank + by, step, rank, by, script_.plan.period);
  }

  const Script& script_;
  Findings& findings_;
  int periods_;
};

}  // namespace

void check_period(const Script& script, Findings& findings) {
  Repetition(script, findings).check();
}

}  // namespace annulus::plan::validation
