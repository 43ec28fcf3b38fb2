#include <annulus/training/optimizer/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <annulus/base/error.hpp>

namespace annulus::optimizer {

void LearningRateSchedule::validate() const {
  require(std::isfinite(peak) && peak >= 0.0,
          "learning-rate schedule: peak is {}, but it must be finite and not negative", peak);
  require(minimum >= 0.0 && minimum <= peak,
          "learning-rate schedule: minimum is {}, but it must lie between 0 and peak {}", minimum, peak);
  require(total_steps >= 1, "learning-rate schedule: total_steps is {}, but it must be at least 1",
          total_steps);
  require(warmup_steps >= 0 && warmup_steps <= total_steps,
          "learning-rate schedule: warmup_steps is {}, but it must lie between 0 and total_steps {}",
          warmup_steps, total_steps);
}

double LearningRateSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const std::int64_t first_at_peak = std::max<std::int64_t>(warmup_steps, 1) - 1, last = total_steps - 1;
  if (step <= first_at_peak) return peak;
  if (step >= last) return minimum;
  const double progress =
      static_cast<double>(step - first_at_peak) / static_cast<double>(last - first_at_peak);
  return minimum + 0.5 * (peak - minimum) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace annulus::optimizer
