#include "html/axis.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace annulus::html {

double Axis::operator()(double value) const {
  const auto place = [this](double v) { return logarithmic ? std::log(v) : v; };
  const double length = place(max) - place(min);
  return begin + (length > 0 ? (place(value) - place(min)) / length : 0.5) * (end - begin);
}

double tick_distance(double length) {
  const double power = std::pow(10.0, std::floor(std::log10(length / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (length / (factor * power) <= 12) return factor * power;
  }
  return 10 * power;
}

std::vector<double> ticks_between(double min, double max, double distance) {
  std::vector<double> ticks;
  const double first = std::ceil(min / distance - 1e-9);
  // Counted from 0: a large number that is counted up by 1 stays what it is.
  for (double i = 0; first + i <= max / distance + 1e-9; ++i)
    ticks.push_back((first + i) * distance + 0.0);  // not -0
  return ticks;
}

std::vector<double> linear_ticks(double max) {
  return ticks_between(0, max, 2 * tick_distance(max));
}

std::string count_text(double count) {
  for (const auto& [unit, name] : {std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "k"}})
    if (count >= unit) return fmt::format("{:.4g}{}", count / unit, name);
  return fmt::format("{:.4g}", count);
}

std::vector<double> logarithmic_ticks(double min, double max) {
  const std::vector<double> few = {1, 2, 5}, many = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<double> ticks;
  for (const std::vector<double>& factors : {few, many}) {
    ticks.clear();
    for (double power = std::pow(10.0, std::floor(std::log10(min))); power <= max; power *= 10) {
      for (const double factor : factors) {
        const double tick = power * factor;
        if (tick >= min * (1 - 1e-9) && tick <= max * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    if (ticks.size() >= 3) return ticks;
  }
  if (ticks.size() == 2) return ticks;
  if (max <= min) return {min};
  return ticks_between(min, max, 2 * tick_distance(max - min));
}

}  // namespace annulus::html
