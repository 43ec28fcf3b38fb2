#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/device_code.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "training/optimizer/adamw.hpp"

/// The update of AdamW, element by element. The host and a device evaluate the same expression to the same
/// bits.
namespace annulus::optimizer::detail {

/// The numbers of one step, computed in double and rounded once.
struct AdamWCoefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float step_size;          ///< lr / (1 − β1ᵗ)
  float second_correction;  ///< 1 / sqrt(1 − β2ᵗ)
  float keep;               ///< 1 − lr · weight_decay
  float gradient_scale;
};
AdamWCoefficients adamw_coefficients(const AdamWOptions& options, std::int64_t step, double learning_rate,
                                     float gradient_scale);

/// [0, size) in order, cut at the ends of `ranges` and at multiples of a few thousand. Throws Error where the
/// ranges leave a gap or overlap. Without the ranges that are not updated.
std::vector<AdamWChunk> adamw_chunks(std::int64_t size, std::span<const ParameterRange> ranges);

// Each is rounded once, to nearest. Every sum is the addend of a fused multiply-add, so that no compiler
// finds a product and a sum to contract: nvcc and GCC do that by default, and each in its own way.

KOKKOS_FORCEINLINE_FUNCTION float product(float a, float b) {
#ifdef ANNULUS_DEVICE_PASS
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// a · b + c
KOKKOS_FORCEINLINE_FUNCTION float fused(float a, float b, float c) {
#ifdef ANNULUS_DEVICE_PASS
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

KOKKOS_FORCEINLINE_FUNCTION float quotient(float a, float b) {
#ifdef ANNULUS_DEVICE_PASS
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

KOKKOS_FORCEINLINE_FUNCTION float root(float a) {
#ifdef ANNULUS_DEVICE_PASS
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

/// One step of one element; `keep` is 1 where it does not decay. No branch, no table and no call, so that
/// compilers make vector code of loops around it.
KOKKOS_FORCEINLINE_FUNCTION void adamw_update(const AdamWCoefficients& by, float keep, float gradient,
                                              float& parameter, float& first_moment, float& second_moment) {
  const float g = product(by.gradient_scale, gradient);
  first_moment = fused(by.beta1, first_moment, product(by.one_minus_beta1, g));
  second_moment = fused(by.beta2, second_moment, product(product(by.one_minus_beta2, g), g));
  const float denominator = fused(root(second_moment), by.second_correction, by.epsilon);
  parameter = fused(keep, parameter, -quotient(product(by.step_size, first_moment), denominator));
}

}  // namespace annulus::optimizer::detail
