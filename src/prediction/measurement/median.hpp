#pragma once

#include <algorithm>
#include <vector>

namespace annulus::measurement {

/// Median of at least one value; of an even number of them the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace annulus::measurement
