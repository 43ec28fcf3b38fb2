#pragma once

#include "attention/kernels/host_simd/tile.hpp"

/// What happens between the products: softmax and its gradient on one panel of scores, in base 2 (scores come
/// scaled by log2 e, for 2^x is what the hardware makes cheap). `lanes` of a panel are `vectors` whole
/// vectors; the row stride of `scores` is `panel`.
namespace annulus::attention::host_simd {

inline constexpr double log2_e = 1.4426950408889634;

/// Online softmax over the rows (keys) of a panel whose lanes are queries:
///   highest' = max(highest, scores), factor = 2^(highest − highest'), scores = 2^(scores − highest'),
///   sum' = factor · sum + Σ scores.
/// Lanes without any key so far keep highest = −∞ and sum = 0.
void softmax(int rows, int vectors, float* scores, float* highest, float* sum, float* factor);

inline float cap_in_base_2(float soft_cap) {
  return static_cast<float>(log2_e * static_cast<double>(soft_cap));
}

/// scores = cap2 · tanh(scores): from score / soft_cap to the capped score in base 2, cap2 =
/// cap_in_base_2(soft_cap).
void cap_scores(int rows, int vectors, float* scores, float cap2);

/// P = 2^(scores − lse2(row)) in place of the scores and dS = P∘(dP − d(row)) in place of dP, for rows of
/// queries. With `cap2` > 0 scores are those of cap_scores(), and dS is multiplied by 1 − (score / cap2)².
///   scores (rows, lanes), d_scores (rows, lanes), lse2 and d (rows).
void softmax_gradient(int rows, int vectors, float* scores, StridedTile d_scores, const float* lse2,
                      const float* d, float cap2);

}  // namespace annulus::attention::host_simd
