#pragma once

#include <annulus/base/division.hpp>
#include <cmath>
#include <limits>

namespace annulus::attention {

/// log(exp(a) + exp(b)) of two numbers that are not both −inf, without overflow.
ANNULUS_FUNCTION inline float log_add_exp(float a, float b) {
  const float high = a < b ? b : a, low = a < b ? a : b;
  return high + std::log1p(std::exp(low - high));
}

/// How a block's row joins the running row: out' = out − weight·(out − block out), lse' as given. It is the
/// online softmax of two parts, out' = exp(lse − lse')·out + exp(block lse − lse')·block out, in a form in
/// which nothing overflows: the weight is a logistic function of the difference of the two LSE.
struct RowMerge {
  float weight, lse;

  /// −inf means "no key so far": the other side is taken as it is; both −inf change nothing.
  ANNULUS_FUNCTION static RowMerge of(float lse, float block_lse) {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    if (block_lse == nothing) return {0.0f, lse};
    if (lse == nothing) return {1.0f, block_lse};
    return {1.0f / (1.0f + std::exp(lse - block_lse)), log_add_exp(lse, block_lse)};
  }
};

}  // namespace annulus::attention
