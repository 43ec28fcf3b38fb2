#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <span>

#include "training/optimizer/adamw_update.hpp"

/// AdamW in memory of the host, on all threads of an execution space of the host, in vector code.
namespace annulus::optimizer::detail {

/// Where elements [begin, end) of a flat buffer lie. Arrays do not overlap, but that the weights may be the
/// parameters.
template <class T>
struct HostElements {
  std::int64_t begin, end;
  float *parameters, *first_moment, *second_moment;  ///< of element 0 of the buffer
  const float* gradients;                            ///< of element `begin`
  T* weights;                                        ///< of element `begin`; null: nobody wants them
};

/// On one thread.
template <class T>
void update_run(const AdamWCoefficients& coefficients, float keep, std::int64_t count,
                float* __restrict parameters, const float* __restrict gradients,
                float* __restrict first_moment, float* __restrict second_moment, T* __restrict weights) {
  const AdamWCoefficients by = coefficients;  // nothing that the loop writes
  if (weights == nullptr) {
    for (std::int64_t i = 0; i < count; ++i)
      adamw_update(by, keep, gradients[i], parameters[i], first_moment[i], second_moment[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      adamw_update(by, keep, gradients[i], parameters[i], first_moment[i], second_moment[i]);
      weights[i] = T(parameters[i]);
    }
  }
}

/// What `chunks` have in common with [at.begin, at.end). Enqueued on `exec`.
template <class Exec, class T>
void update_on_host(const Exec& exec, const AdamWCoefficients& by, std::span<const AdamWChunk> chunks,
                    const HostElements<T>& at) {
  Kokkos::parallel_for(
      "annulus::optimizer::adamw",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Static>>(
          exec, 0, static_cast<std::int64_t>(chunks.size())),
      [=](const std::int64_t c) {
        const AdamWChunk& chunk = chunks[static_cast<std::size_t>(c)];
        const std::int64_t begin = std::max(chunk.begin, at.begin), end = std::min(chunk.end, at.end);
        update_run<T>(by, chunk.decay ? by.keep : 1.0f, end - begin, at.parameters + begin,
                      at.gradients + (begin - at.begin), at.first_moment + begin, at.second_moment + begin,
                      at.weights == nullptr ? nullptr : at.weights + (begin - at.begin));
      });
}

}  // namespace annulus::optimizer::detail
