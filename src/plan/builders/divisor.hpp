#pragma once

#include <algorithm>

namespace annulus::plan {

/// The largest divisor of `number` that is at most `most`; 1 when `most` is less.
inline int largest_divisor(int number, int most) {
  int divisor = std::clamp(most, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

}  // namespace annulus::plan
