#pragma once

#include "attention/kernels/gpu/instructions.hpp"

namespace annulus::attention::gpu {

/// A capped score is soft_cap · tanh(tangent_factor · q·k).
struct CapFactors {
  float tangent;  ///< scale / soft_cap
  float power;    ///< of the tangent, to powers of two: soft_cap · log2(e)
};

/// The probability of a capped score, and the derivative of this score by the one before.
struct CappedPower {
  float value, slope;

  __device__ __forceinline__ static CappedPower of(float product, const CapFactors& factors, float lse2) {
    const float t = tangent(product * factors.tangent);
    return {power_of_two(fmaf(t, factors.power, -lse2)), fmaf(-t, t, 1.0f)};
  }
};

}  // namespace annulus::attention::gpu
