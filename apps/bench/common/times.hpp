#pragma once

#include <algorithm>
#include <vector>

namespace annulus::bench {

/// Numbers of the repetitions of one measurement.
class RepeatedTimes {
 public:
  void add(double value) { values_.insert(std::upper_bound(values_.begin(), values_.end(), value), value); }
  bool empty() const { return values_.empty(); }
  double least() const { return values_.front(); }
  double most() const { return values_.back(); }
  double median() const {
    const std::size_t half = values_.size() / 2;
    return values_.size() % 2 == 1 ? values_[half] : 0.5 * (values_[half - 1] + values_[half]);
  }
  const std::vector<double>& ascending() const { return values_; }

 private:
  std::vector<double> values_;  // ascending
};

}  // namespace annulus::bench
