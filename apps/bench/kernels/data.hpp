#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "bench/common/noise.hpp"
#include "bench/common/samples.hpp"

/// Operands and results of `annulus-bench kernels`.
namespace annulus::bench {

/// noise() as it is stored.
template <class T>
double stored(std::uint32_t seed, std::int64_t index) {
  return static_cast<double>(static_cast<float>(T(noise(seed, index))));
}

/// An array of noise.
template <class View, class Exec, class... Extents>
View operand(const Exec& exec, std::uint32_t seed, const std::string& name, Extents... extents) {
  const View view(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "annulus::bench::" + name),
                  extents...);
  fill(exec, seed, view.data(), static_cast<std::int64_t>(view.size()));
  return view;
}

/// An array for results.
template <class View, class Exec, class... Extents>
View result(const Exec& exec, const std::string& name, Extents... extents) {
  return View(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "annulus::bench::" + name), extents...);
}

/// Numbers [first, first + count) of an array on the host.
template <class View>
std::vector<double> numbers(const View& view, std::int64_t first, std::int64_t count) {
  using T = typename View::non_const_value_type;
  using Flat = Kokkos::View<const T*, typename View::memory_space, Kokkos::MemoryUnmanaged>;
  const auto host = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace(), Flat(view.data() + first, static_cast<std::size_t>(count)));
  std::vector<double> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<double>(static_cast<float>(host(i)));
  return all;
}

/// The largest difference of results to a reference, relative to the largest number of the reference.
class RowDifference {
 public:
  void add(double actual, double expected) {
    const double difference = std::abs(actual - expected);
    difference_ = std::isfinite(difference) ? std::max(difference_, difference) : HUGE_VAL;
    most_ = std::max(most_, std::abs(expected));
  }
  double relative() const { return most_ > 0 ? difference_ / most_ : difference_; }

 private:
  double difference_ = 0, most_ = 0;
};

/// ReadyKernel::error of an array, compared row by row: `expected(row, column)` for sampled rows.
template <class View, class Expected>
std::function<double()> difference(const View& view, std::int64_t rows, std::int64_t columns,
                                   const Expected& expected) {
  return [=] {
    RowDifference all;
    for (const std::int64_t row : sampled_indices(rows)) {
      const std::vector<double> actual = numbers(view, row * columns, columns);
      for (std::int64_t c = 0; c < columns; ++c) all.add(actual[c], expected(row, c));
    }
    return all.relative();
  };
}

}  // namespace annulus::bench
