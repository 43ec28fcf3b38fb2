#include <annulus/training/optimizer/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace annulus::optimizer {

double LearningRateSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const std::int64_t first_at_peak = std::max<std::int64_t>(warmup_steps, 1) - 1, last = schedule_steps - 1;
  if (step <= first_at_peak) return lr;
  if (step >= last) return min_lr;
  const double progress =
      static_cast<double>(step - first_at_peak) / static_cast<double>(last - first_at_peak);
  return min_lr + 0.5 * (lr - min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace annulus::optimizer
