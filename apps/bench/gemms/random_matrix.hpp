#pragma once

#include <annulus/base/splitmix.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/core/range.hpp>
#include <annulus/core/tensor.hpp>
#include <cstdint>
#include <string>

namespace annulus::bench {

/// A number in [-1, 1) for every (seed, index).
KOKKOS_INLINE_FUNCTION float uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<float>(mix_bits(index + splitmix_step * (seed + 1)) >> 40) * 0x1p-23f - 1.0f;
}

template <class Exec, class T>
void fill_random(const Exec& exec, const Array2<T, Exec>& matrix, std::uint64_t seed, float deviation) {
  const float amplitude = deviation * 1.7320508f;  // a uniform number in [-1, 1) has the variance 1/3
  const auto columns = static_cast<std::int64_t>(matrix.extent(1));
  Kokkos::parallel_for(
      "annulus::bench::fill_random",
      ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(matrix.extent(0)) * columns),
      KOKKOS_LAMBDA(std::int64_t i) {
        matrix(i / columns, i % columns) = T(amplitude * uniform(seed, static_cast<std::uint64_t>(i)));
      });
}

/// (rows, columns) random numbers of mean 0, the same on every device.
template <class T, class Exec>
Owned<Array2<T, Exec>> random_matrix(const Exec& exec, const char* name, std::int64_t rows,
                                     std::int64_t columns, std::uint64_t seed, float deviation) {
  auto matrix = Owned<Array2<T, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                      std::string("annulus::bench::") + name, rows, columns);
  fill_random<Exec, T>(exec, *matrix, seed, deviation);
  return matrix;
}

}  // namespace annulus::bench
