#pragma once

#include <string>
#include <vector>

namespace annulus::html {

/// Maps values to pixels.
struct Axis {
  double min = 0, max = 1;    ///< values
  double begin = 0, end = 1;  ///< pixels
  bool logarithmic = false;

  double operator()(double value) const;
};

/// A distance of ticks of the form 1, 2 or 5 times a power of ten that gives about ten of them on an axis.
double tick_distance(double length);

/// Ticks from 0 to `max`; about half as many as tick_distance gives, for small drawings.
std::vector<double> linear_ticks(double max);

/// The multiples of `distance` from `min` to `max`.
std::vector<double> ticks_between(double min, double max, double distance);

/// A count as people write it: 500, 20k, 1.5M, 2G.
std::string count_text(double count);

/// Round numbers inside the range: 1, 2 and 5 times powers of ten, or 1 to 9 times where these are too few,
/// or at equal distances where the range is too narrow for those.
std::vector<double> logarithmic_ticks(double min, double max);

}  // namespace annulus::html
