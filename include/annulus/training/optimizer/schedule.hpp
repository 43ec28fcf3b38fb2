#pragma once

#include <cstdint>

namespace annulus::optimizer {

/// Learning rate by optimizer step: linear warm-up to `peak`, then half a cosine down to `minimum`.
struct LearningRateSchedule {
  double peak = 0.0;
  double minimum = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  /// Throws Error naming the field: 0 ≤ minimum ≤ peak, both finite, 0 ≤ warmup_steps ≤ total_steps, 1 ≤
  /// total_steps.
  void validate() const;

  /// The rate of optimizer step `step`, counted from 0. Step warmup_steps − 1 is the first at `peak` (step 0
  /// without warm-up), step total_steps − 1 and all later ones run at `minimum`.
  double at(std::int64_t step) const;

  bool operator==(const LearningRateSchedule&) const = default;
};

}  // namespace annulus::optimizer
