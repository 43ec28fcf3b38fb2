#pragma once

#include "attention/kernels/portable/matrix.hpp"
#include "attention/kernels/portable/products.hpp"
#include "attention/kernels/portable/tile_mask.hpp"

namespace annulus::attention::portable {

/// Which side a team owns in the backward pass; it walks over the other.
enum class OwnedSide : std::uint8_t { queries, keys };

// scratch.row in the backward pass: the LSE of each query row, and d.
inline constexpr int lse_row = 0, d_row = 1;

/// Reads LSE and d of `rows` query rows up to `padded`. Rows without keys (LSE = −inf) and rows behind the
/// end get LSE = +inf, which makes their probabilities exp(score − LSE) zero.
template <class Member, class Numbers>
KOKKOS_FUNCTION void load_statistics(const Member& member, const Numbers& lse, const Numbers& d,
                                     std::int64_t batch, std::int64_t head, std::int64_t first, int rows,
                                     int padded, const Scratch& scratch) {
  constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(member, padded), [&](int i) {
    const bool used = i < rows && lse(batch, head, first + i) != -infinity;
    scratch.row[lse_row][i] = used ? lse(batch, head, first + i) : infinity;
    scratch.row[d_row][i] = used ? d(batch, head, first + i) : 0.0f;
  });
}

/// True when query row `i` has keys, from what load_statistics wrote.
KOKKOS_INLINE_FUNCTION bool has_probabilities(const Scratch& scratch, int i) {
  return scratch.row[lse_row][i] != Kokkos::Experimental::infinity_v<float>;
}

/// Recomputes the probabilities of a tile and the gradients of its scores (BurstEngine Algorithm 2):
///   scores[0] (inner, own) = P = exp(S − LSE), 0 where masked;  scores[1] = dS = P∘(dO·Vᵀ − d),
/// times the derivative of capped scores.
/// inner[0]·own[0] is S (one of them holds scale·Q, the other K), inner[1]·own[1] is dO·Vᵀ.
template <OwnedSide owner, class Exec, class Member>
KOKKOS_FUNCTION void compute_probabilities(const Member& member, const Tiles& tiles, int head_dim,
                                           int v_head_dim, const Scratch& scratch, const MaskRule& rule,
                                           float soft_cap, int own_rows, int inner_rows, Coverage coverage) {
  for_each_register_tile<Exec>(member, inner_rows, tiles.own, [&](int m0, int n0) {
    RegisterTile<Exec> score, gradient;
    score.add_rows(head_dim, scratch.inner[0] + m0 * tiles.width, tiles.width, scratch.own[0] + n0,
                   tiles.own);
    gradient.add_rows(v_head_dim, scratch.inner[1] + m0 * tiles.width, tiles.width, scratch.own[1] + n0,
                      tiles.own);
    RegisterTile<Exec> derivative;  // of capped scores by scores
    if (soft_cap > 0.0f) {
      for (int m = 0; m < score.rows; ++m) {
        for (int n = 0; n < score.columns; ++n) {
          const CappedScore capped = CappedScore::of(score.value[m][n], soft_cap);
          score.value[m][n] = capped.value;
          derivative.value[m][n] = capped.derivative;
        }
      }
    }
    for (int m = 0; m < score.rows && m0 + m < inner_rows; ++m) {
      float* const p = scratch.scores[0] + (m0 + m) * tiles.own + n0;
      float* const ds = scratch.scores[1] + (m0 + m) * tiles.own + n0;
      for (int n = 0; n < score.columns; ++n) {
        const int query = owner == OwnedSide::queries ? n0 + n : m0 + m;
        const int key = owner == OwnedSide::queries ? m0 + m : n0 + n;
        const bool allowed = coverage == Coverage::full ||
                             (n0 + n < own_rows && allows(rule, scratch.queries[query], scratch.keys[key]));
        p[n] = allowed ? Kokkos::exp(score.value[m][n] - scratch.row[lse_row][query]) : 0.0f;
        ds[n] = p[n] * (gradient.value[m][n] - scratch.row[d_row][query]);
        if (soft_cap > 0.0f) ds[n] *= derivative.value[m][n];
      }
    }
  });
}

/// result(m, c) += factor · Σ_i weights(i, m) · tile(i, c): own rows' gradients from a tile of the other
/// side. weights (inner, own), tile (inner, width), result (own_rows, columns).
template <class Exec, class Member>
KOKKOS_FUNCTION void add_product(const Member& member, const Tiles& tiles, int columns, const float* weights,
                                 const float* tile, int own_rows, int inner_rows, float factor,
                                 HeadRows<float> result) {
  for_each_register_tile<Exec>(member, own_rows, columns, [&](int m0, int n0) {
    RegisterTile<Exec> acc;
    acc.add_transposed(inner_rows, weights + m0, tiles.own, tile + n0, tiles.width);
    const int here = Kokkos::min(int{acc.columns}, columns - n0);  // a copy: devices have no statics
    for (int m = 0; m < acc.rows && m0 + m < own_rows; ++m) {
      float* const to = result.row(m0 + m) + n0;
      for (int n = 0; n < here; ++n) to[n] += factor * acc.value[m][n];
    }
  });
}

}  // namespace annulus::attention::portable
