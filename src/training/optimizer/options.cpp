#include <annulus/training/optimizer/options.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::optimizer {

void AdamWOptions::validate(std::string_view section) const {
  for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)})
    require(beta >= 0 && beta < 1, "{}{} = {}: give a number from 0 up to, but not 1", section, name, beta);
  require(std::isfinite(epsilon) && epsilon > 0, "{}epsilon = {}: give a small positive number", section,
          epsilon);
  require(std::isfinite(weight_decay) && weight_decay >= 0,
          "{}weight_decay = {}: give 0 or a positive number", section, weight_decay);
}

double LearningRateSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const std::int64_t first_at_peak = std::max<std::int64_t>(warmup_steps, 1) - 1, last = schedule_steps - 1,
                     last_at_peak =
                         curve == Curve::wsd ? std::max(first_at_peak, last - decay_steps) : first_at_peak;
  if (step <= last_at_peak || !ends()) return lr;
  if (step >= last) return min_lr;
  const double progress = static_cast<double>(step - last_at_peak) / static_cast<double>(last - last_at_peak);
  if (curve != Curve::cosine) return lr + (min_lr - lr) * progress;
  return min_lr + 0.5 * (lr - min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

namespace {
constexpr std::array<std::string_view, 4> curves = {"cosine", "linear", "constant", "wsd"};
}

LearningRateSchedule::Curve LearningRateSchedule::parse_curve(std::string_view name, std::string_view field) {
  const auto found = std::ranges::find(curves, name);
  require(found != curves.end(), "{} '{}' is unknown; known are cosine, linear, constant and wsd", field,
          name);
  return static_cast<Curve>(found - curves.begin());
}

std::string_view LearningRateSchedule::name_of(Curve curve) {
  return curves[static_cast<std::size_t>(curve)];
}

}  // namespace annulus::optimizer
