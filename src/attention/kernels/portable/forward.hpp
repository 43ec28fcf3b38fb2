#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/division.hpp>

#include "attention/kernels/merge_row.hpp"
#include "attention/kernels/portable/key_tiles.hpp"
#include "attention/kernels/portable/launch.hpp"
#include "attention/kernels/portable/matrix.hpp"
#include "attention/kernels/portable/portable.hpp"
#include "attention/kernels/portable/products.hpp"
#include "attention/kernels/portable/tile_mask.hpp"

namespace annulus::attention::portable {

/// Forward pass: a team owns a tile of queries and walks over the keys with an online softmax
/// (FlashAttention-2, Algorithm 1); the normalised result is merged into the running (out, lse) at the end.
template <class Exec, class T>
struct ForwardKernel {
  Operands<T, Exec> in;
  Strided4<float, Exec> out;  // (batch, heads, q_rows, v_head_dim)
  Strided3<float, Exec> lse;  // (batch, heads, q_rows)
  Tiles tiles;
  int head_dim, v_head_dim;
  std::int64_t group, heads, q_tiles;

  ForwardKernel(const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
                const Strided3<float, Exec>& lse)
      : in(in),
        out(out),
        lse(lse),
        tiles(tiles_of<Exec>(in)),
        head_dim(in.q.extent_int(3)),
        v_head_dim(in.v.extent_int(3)),
        group(in.q.extent(1) / in.k.extent(1)),
        heads(in.q.extent(1)),
        q_tiles(ceil_divide(in.q.extent(2), tiles.own)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(in.q.extent(0)) * heads * q_tiles; }

  KOKKOS_FUNCTION void operator()(const Member<Exec>& member) const {
    TeamTile place = TeamTile::of(member.league_rank(), heads, q_tiles);
    place.tile = q_tiles - 1 - place.tile;  // causal: the longest first, so that no thread ends late
    const std::int64_t q_first = place.tile * tiles.own;
    const std::int64_t kv_head = place.head / group;
    const PositionMap q =
        in.q_positions.slice({q_first, Kokkos::min<std::int64_t>(q_first + tiles.own, in.q_positions.count)});
    const int q_rows = static_cast<int>(q.count);
    const RowRange range = key_rows(in.mask, q, in.keys());
    if (range.empty()) return;

    const Scratch scratch(member, tiles);
    start(member, scratch, HeadRows<const T>::of(in.q, place.batch, place.head, q_first), q);
    const auto add_keys = [&](int kv_rows, Coverage coverage) {
      compute_scores(member, scratch, q_rows, kv_rows, coverage);
      member.team_barrier();
      raise_maxima(member, scratch, kv_rows);
      member.team_barrier();
      exponentiate(member, scratch, kv_rows);
      member.team_barrier();
      add_values(member, scratch, q_rows, kv_rows);
    };
    for_each_key_tile(member, tiles, in, place.batch, kv_head, q, range, scratch, add_keys);
    member.team_barrier();
    merge(member, scratch, place, q_first, q_rows);
  }

 private:
  // scratch.row: the running maximum and sum of each query row, and the factor that the last tile puts on
  // them.
  static constexpr int maximum = 0, sum = 1, correction = 2;

  KOKKOS_FUNCTION void start(const Member<Exec>& member, const Scratch& scratch, HeadRows<const T> queries,
                             const PositionMap& q) const {
    load_transposed(member, tiles, head_dim, queries, static_cast<int>(q.count), AllRows(), in.scale,
                    scratch.own[0]);
    load_queries(member, in.mask, q, scratch.queries);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, tiles.own), [&](int i) {
      scratch.row[maximum][i] = -Kokkos::Experimental::infinity_v<float>;
      scratch.row[sum][i] = 0.0f;
    });
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, tiles.own * tiles.width),
                         [&](int i) { scratch.own[1][i] = 0.0f; });
  }

  /// scores (keys, queries) = scale · K·Qᵀ, capped, −inf where masked.
  KOKKOS_FUNCTION void compute_scores(const Member<Exec>& member, const Scratch& scratch, int q_rows,
                                      int kv_rows, Coverage coverage) const {
    for_each_register_tile<Exec>(member, kv_rows, tiles.own, [&](int m0, int n0) {
      RegisterTile<Exec> acc;
      acc.add_rows(head_dim, scratch.inner[0] + m0 * tiles.width, tiles.width, scratch.own[0] + n0,
                   tiles.own);
      if (in.soft_cap > 0.0f) {
        for (int m = 0; m < acc.rows; ++m) {
          for (int n = 0; n < acc.columns; ++n)
            acc.value[m][n] = CappedScore::of(acc.value[m][n], in.soft_cap).value;
        }
      }
      for (int m = 0; m < acc.rows && m0 + m < kv_rows; ++m) {
        float* const scores = scratch.scores[0] + (m0 + m) * tiles.own + n0;
        if (coverage == Coverage::full) {
          for (int n = 0; n < acc.columns; ++n) scores[n] = acc.value[m][n];
        } else {
          for (int n = 0; n < acc.columns; ++n) {
            const bool allowed =
                n0 + n < q_rows && allows(in.mask, scratch.queries[n0 + n], scratch.keys[m0 + m]);
            scores[n] = allowed ? acc.value[m][n] : -Kokkos::Experimental::infinity_v<float>;
          }
        }
      }
    });
  }

  KOKKOS_FUNCTION void raise_maxima(const Member<Exec>& member, const Scratch& scratch, int kv_rows) const {
    constexpr int lanes = Registers<Exec>::lanes;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, tiles.own / lanes), [&](int part) {
      float* const maxima = scratch.row[maximum] + part * lanes;
      float high[lanes];
      for (int n = 0; n < lanes; ++n) high[n] = maxima[n];
      for (int m = 0; m < kv_rows; ++m) {
        const float* const scores = scratch.scores[0] + m * tiles.own + part * lanes;
        for (int n = 0; n < lanes; ++n) high[n] = high[n] < scores[n] ? scores[n] : high[n];
      }
      for (int n = 0; n < lanes; ++n) {
        scratch.row[correction][part * lanes + n] = Kokkos::exp(maxima[n] - finite(high[n]));
        maxima[n] = high[n];
      }
    });
  }

  /// scores = exp(scores − maximum).
  KOKKOS_FUNCTION void exponentiate(const Member<Exec>& member, const Scratch& scratch, int kv_rows) const {
    constexpr int lanes = Registers<Exec>::lanes;
    const int parts = tiles.own / lanes;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, kv_rows * parts), [&](int index) {
      const int first = index % parts * lanes;
      float* const scores = scratch.scores[0] + index / parts * tiles.own + first;
      const float* const maxima = scratch.row[maximum] + first;
      for (int n = 0; n < lanes; ++n) scores[n] = Kokkos::exp(scores[n] - finite(maxima[n]));
    });
  }

  /// sum = correction · sum + Σ P, out = correction · out + P·V.
  KOKKOS_FUNCTION void add_values(const Member<Exec>& member, const Scratch& scratch, int q_rows,
                                  int kv_rows) const {
    constexpr int lanes = Registers<Exec>::lanes;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, tiles.own / lanes), [&](int part) {
      float total[lanes] = {};
      for (int m = 0; m < kv_rows; ++m) {
        const float* const p = scratch.scores[0] + m * tiles.own + part * lanes;
        for (int n = 0; n < lanes; ++n) total[n] += p[n];
      }
      for (int n = 0; n < lanes; ++n) {
        float& running = scratch.row[sum][part * lanes + n];
        running = scratch.row[correction][part * lanes + n] * running + total[n];
      }
    });
    for_each_register_tile<Exec>(member, q_rows, v_head_dim, [&](int m0, int n0) {
      RegisterTile<Exec> acc;
      acc.add_transposed(kv_rows, scratch.scores[0] + m0, tiles.own, scratch.inner[1] + n0, tiles.width);
      for (int m = 0; m < acc.rows; ++m) {
        float* const running = scratch.own[1] + (m0 + m) * tiles.width + n0;
        const float factor = scratch.row[correction][m0 + m];
        for (int n = 0; n < acc.columns; ++n) running[n] = factor * running[n] + acc.value[m][n];
      }
    });
  }

  KOKKOS_FUNCTION void merge(const Member<Exec>& member, const Scratch& scratch, const TeamTile& place,
                             std::int64_t q_first, int q_rows) const {
    const HeadRows<float> result = HeadRows<float>::of(out, place.batch, place.head, q_first);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, q_rows), [&](int i) {
      const float total = scratch.row[sum][i];
      if (total == 0.0f) return;  // no key; a NaN goes on, so that it is seen
      float& running_lse = lse(place.batch, place.head, q_first + i);
      const RowMerge step = RowMerge::of(running_lse, scratch.row[maximum][i] + Kokkos::log(total));
      const float* const block = scratch.own[1] + i * tiles.width;
      float* const running = result.row(i);
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, v_head_dim),
                           [&](int c) { running[c] -= step.weight * (running[c] - block[c] / total); });
      Kokkos::single(Kokkos::PerThread(member), [&] { running_lse = step.lse; });
    });
  }

  /// A row that has seen no key has the maximum −inf, and −inf − (−inf) is no number; any finite number will
  /// do.
  KOKKOS_INLINE_FUNCTION static float finite(float row_maximum) {
    return row_maximum == -Kokkos::Experimental::infinity_v<float> ? 0.0f : row_maximum;
  }
};

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse) {
  const ForwardKernel<Exec, T> kernel(in, out, lse);
  launch(exec, "annulus::attention::portable::forward", kernel.leagues(), kernel.tiles, kernel);
}

}  // namespace annulus::attention::portable
