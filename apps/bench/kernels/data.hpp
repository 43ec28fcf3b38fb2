#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/base/float16.hpp>
#include <annulus/base/splitmix.hpp>
#include <annulus/core/range.hpp>
#include <annulus/core/tensor.hpp>

/// Operands of `annulus-bench kernels`: numbers that are a function of their index, so that the reference
/// needs no copy of what a kernel has overwritten.
namespace annulus::bench {

/// Uniform in [-1, 1).
KOKKOS_INLINE_FUNCTION float noise(std::uint32_t seed, std::int64_t index) {
  const std::uint64_t bits =
      mix_bits(static_cast<std::uint64_t>(index) * splitmix_step + (std::uint64_t{seed} << 32));
  return static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
}

/// The same as it is stored.
template <class T>
double stored(std::uint32_t seed, std::int64_t index) {
  return static_cast<double>(static_cast<float>(T(noise(seed, index))));
}

template <class T, class Exec>
void fill(const Exec& exec, std::uint32_t seed, T* to, std::int64_t size) {
  Kokkos::parallel_for(
      "annulus::bench::fill", ElementRange<Exec>(exec, 0, size),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = T(noise(seed, i)); });
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

/// Rows from all parts of `rows`, the first and the last among them.
inline std::vector<std::int64_t> some_rows(std::int64_t rows) {
  constexpr std::int64_t most = 13;
  std::vector<std::int64_t> some;
  for (std::int64_t i = 0; i < most; ++i) {
    const std::int64_t row = i * (rows - 1) / (most - 1);
    if (some.empty() || row != some.back()) some.push_back(row);
  }
  return some;
}

/// The largest difference of results to a reference, relative to the largest number of the reference.
class Difference {
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

/// Compares row by row: `expected(row, column)` for the rows of `some_rows`.
template <class View, class Expected>
double difference(const View& view, std::int64_t rows, std::int64_t columns, const Expected& expected) {
  Difference all;
  for (const std::int64_t row : some_rows(rows)) {
    const std::vector<double> actual = numbers(view, row * columns, columns);
    for (std::int64_t c = 0; c < columns; ++c) all.add(actual[static_cast<std::size_t>(c)], expected(row, c));
  }
  return all.relative();
}

}  // namespace annulus::bench
