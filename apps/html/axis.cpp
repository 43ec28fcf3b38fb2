#include "html/axis.hpp"

#include <cmath>

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

std::vector<double> linear_ticks(double max) {
  std::vector<double> ticks;
  const double step = 2 * tick_distance(max);
  for (int i = 0; i * step <= max * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
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
  ticks.clear();
  const double step = 2 * tick_distance(max - min);
  for (double i = std::ceil(min / step - 1e-9); i * step <= max * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

}  // namespace annulus::html
