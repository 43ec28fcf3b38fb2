#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/range.hpp"
#include "base/splitmix.hpp"

/// Operands of benchmarks: numbers that are a function of their index, the same on every device, so that a
/// reference needs no copy of what a kernel has overwritten.
namespace annulus::bench {

/// Uniform in [-1, 1).
KOKKOS_INLINE_FUNCTION float noise(std::uint64_t seed, std::int64_t index) {
  return static_cast<float>(mix_bits(static_cast<std::uint64_t>(index) + splitmix_step * (seed + 1)) >> 40) *
             0x1p-23f -
         1.0f;
}

template <class T, class Exec>
void fill(const Exec& exec, std::uint64_t seed, T* to, std::int64_t size, float amplitude = 1.0f) {
  Kokkos::parallel_for(
      "annulus::bench::fill", ElementRange<Exec>(exec, 0, size),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = T(amplitude * noise(seed, i)); });
}

/// (rows, columns) numbers of mean 0.
template <class T, class Exec>
Owned<Array2<T, Exec>> random_matrix(const Exec& exec, const char* name, std::int64_t rows,
                                     std::int64_t columns, std::uint64_t seed, float deviation) {
  auto matrix = Owned<Array2<T, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                      std::string("annulus::bench::") + name, rows, columns);
  // A uniform number in [-1, 1) has the variance 1/3.
  fill(exec, seed, matrix.view().data(), rows * columns, deviation * 1.7320508f);
  return matrix;
}

}  // namespace annulus::bench
