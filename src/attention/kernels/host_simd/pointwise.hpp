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

/// P = 2^(scores − lse2(row)) in place of the scores and dS = P∘(dP − d(row)) in place of dP, for rows of
/// queries.
///   scores (rows, lanes), d_scores (rows, lanes), lse2 and d (rows).
void softmax_gradient(int rows, int vectors, float* scores, StridedTile d_scores, const float* lse2,
                      const float* d);

}  // namespace annulus::attention::host_simd
