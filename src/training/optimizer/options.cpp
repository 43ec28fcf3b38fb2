#include <annulus/training/optimizer/options.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include <annulus/base/error.hpp>

namespace annulus::optimizer {

void AdamWOptions::validate() const {
  const auto require_beta = [](double beta, std::string_view name) {
    require(beta >= 0.0 && beta < 1.0, "AdamW: {} is {}, but it must lie in [0, 1)", name, beta);
  };
  require_beta(beta1, "beta1");
  require_beta(beta2, "beta2");
  require(std::isfinite(epsilon) && epsilon > 0.0, "AdamW: epsilon is {}, but it must be finite and positive",
          epsilon);
  require(std::isfinite(weight_decay) && weight_decay >= 0.0,
          "AdamW: weight_decay is {}, but it must be finite and not negative", weight_decay);
}

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
