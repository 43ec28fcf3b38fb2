#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <annulus/base/dtype.hpp>

#include "support/exec.hpp"

namespace annulus::test {

/// The types that training computes in.
using TrainingTypes = testing::Types<float, bfloat16>;
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return std::string(name_of(dtype_of<T>));
  }
};

/// What the view holds, on the host: itself where it lies there.
template <class View>
auto values_of(const View& view) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
}

/// A copy on the host that later writes do not change.
template <class View>
auto copy_on_host(const View& view) {
  Kokkos::fence();
  const auto copy = Kokkos::create_mirror(view);
  Kokkos::deep_copy(copy, view);
  return copy;
}

/// Normal numbers, rounded to the view's type.
template <class View>
View random(unsigned seed, const View& view) {
  const auto host = Kokkos::create_mirror_view(view);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < host.size(); ++i)
    host.data()[i] = typename View::non_const_value_type(normal(generator));
  Kokkos::deep_copy(view, host);
  return view;
}

template <class T>
Array2<T, TestExec> random2(unsigned seed, int rows, int columns) {
  return random(seed, Array2<T, TestExec>("random", rows, columns));
}

/// How far a result that is rounded to T once may lie from `expected`: `absolute` is what fp32 arithmetic
/// loses.
template <class T>
double tolerance(double expected, double absolute) {
  const double rounding = std::is_same_v<T, float> ? 0x1p-20 : 0x1.02p-8;
  return absolute + rounding * std::abs(expected);
}

}  // namespace annulus::test
