#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/exec.hpp"

namespace annulus::test {

/// A (rows, columns) matrix of random numbers in [-1, 1) inside a wider array whose other elements are NaN:
/// reading one of them shows in the result, writing one in `padding_untouched`. The numbers live on the host;
/// the array of TestExec gets them by upload() and gives them back by download().
template <class T>
class TestMatrix {
 public:
  TestMatrix(std::size_t rows, std::size_t columns, std::size_t before, std::size_t after, unsigned seed)
      : rows_(rows),
        columns_(columns),
        first_(before),
        width_(before + columns + after),
        values_(rows * width_, T(std::numeric_limits<float>::quiet_NaN())),
        all_("annulus::test::matrix", rows, width_) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) value(i, j) = T(uniform(random));
  }

  double at(std::size_t i, std::size_t j) const {
    return static_cast<float>(values_[i * width_ + first_ + j]);
  }
  void fill(float with) {
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t j = 0; j < columns_; ++j) value(i, j) = T(with);
  }

  Array2<T, TestExec> device() const {
    return Kokkos::subview(all_, Kokkos::ALL, std::pair(first_, first_ + columns_));
  }
  Array2<T, TestExec> upload() const {
    Kokkos::deep_copy(all_, Array2<const T, HostExec>(values_.data(), rows_, width_));
    return device();
  }
  void download() { Kokkos::deep_copy(Array2<T, HostExec>(values_.data(), rows_, width_), all_); }

  bool padding_untouched() const {
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t j = 0; j < width_; ++j)
        if ((j < first_ || j >= first_ + columns_) &&
            !std::isnan(static_cast<float>(values_[i * width_ + j])))
          return false;
    return true;
  }

 private:
  T& value(std::size_t i, std::size_t j) { return values_[i * width_ + first_ + j]; }

  std::size_t rows_, columns_, first_, width_;
  std::vector<T> values_;
  Array2<T, TestExec> all_;
};

}  // namespace annulus::test
