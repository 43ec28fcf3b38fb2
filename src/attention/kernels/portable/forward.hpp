#pragma once

#include <algorithm>
#include <annulus/base/division.hpp>

#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/merge_row.hpp"
#include "attention/kernels/portable/portable.hpp"
#include "attention/kernels/portable/products.hpp"
#include "attention/kernels/portable/tile_mask.hpp"

namespace annulus::attention::portable {

/// Forward pass: a team owns a tile of queries and walks over the keys with an online softmax
/// (FlashAttention-2, Algorithm 1); the normalised result is merged into the running (out, lse) at the end.
template <class Exec, class T, int width>
struct ForwardKernel {
  static constexpr int threads = forward_threads<width>, teams = forward_teams<width>;
  using Member = portable::Member<Exec, threads>;
  using TileScores = Scores<threads>;

  Operands<T, Exec> in;
  Strided4<float, Exec> out;  // (batch, heads, q_rows, v_head_dim)
  Strided3<float, Exec> lse;  // (batch, heads, q_rows)
  bool packed;                // operands' rows start at multiples of 16 bytes
  std::int64_t group, heads, q_tiles;

  ForwardKernel(const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
                const Strided3<float, Exec>& lse)
      : in(in),
        out(out),
        lse(lse),
        packed(gpu::aligned(in.q, 16) && gpu::aligned(in.k, 16) && gpu::aligned(in.v, 16)),
        group(in.q.extent(1) / in.k.extent(1)),
        heads(in.q.extent(1)),
        q_tiles(ceil_divide<std::int64_t>(in.q_positions.count, rows)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(in.q.extent(0)) * heads * q_tiles; }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    TeamTile place = TeamTile::of(member.league_rank(), heads, q_tiles);
    place.tile = q_tiles - 1 - place.tile;  // causal: the longest first, so that no team ends late
    const std::int64_t q_first = place.tile * rows;
    const std::int64_t kv_head = place.head / group;
    const PositionMap q = tile_of(in.q_positions, q_first, in.q_positions.count);
    const int q_rows = static_cast<int>(q.count);
    const RowRange range = key_rows(in.mask, q, in.keys());
    if (range.empty()) return;

    const Scratch scratch(member);
    Threads<Exec, threads, State> states;
    states.each(member, [&](int thread, State& state) {
      state.out.clear();
      ANNULUS_UNROLL
      for (int i = 0; i < TileScores::own; ++i) {
        state.maximum[i] = -Kokkos::Experimental::infinity_v<float>;
        state.sum[i] = 0.0f;
      }
      load_queries<threads>(thread, in.mask, q, scratch.queries);
    });
    const auto queries = source_of(in.q, place.batch, place.head, q_first, in.scale, packed, Below{q_rows});

    for (std::int64_t first = range.begin; first < range.end; first += rows) {
      const KeyPositions kv = tile_of(in.keys(), first, range.end);
      const Coverage coverage = in.mask.classify(q, kv);
      if (coverage == Coverage::empty) continue;
      const int kv_rows = static_cast<int>(kv.count());
      const auto keys = source_of(in.k, place.batch, kv_head, first, 1.0f, packed, Below{kv_rows});
      const auto values = source_of(in.v, place.batch, kv_head, first, 1.0f, packed, Below{kv_rows});
      states.each(member, [&](int thread, State& state) {
        state.scores.clear();
        // Those of the last tile were read before its last barrier.
        if (coverage == Coverage::partial) load_keys<threads>(thread, kv, scratch.keys);
      });
      multiply_rows<threads>(member, states, scratch.stage, queries, keys,
                             [](State& state) -> TileScores& { return state.scores; });
      states.each(member, [&](int thread, State& state) {
        limit(thread, state.scores, scratch, q_rows, kv_rows, coverage);
        put_maxima(thread, state.scores, scratch.partial);
      });
      member.team_barrier();
      states.each(member, [&](int thread, State& state) { exponentiate(thread, state, scratch); });
      member.team_barrier();
      states.each(member, [&](int thread, State& state) { rescale(thread, state.out, scratch.row[0]); });
      multiply_scores<threads, width>(member, states, scratch, values, kv_rows,
                                      [](State& state) -> TileSums& { return state.out; });
    }
    merge(member, states, scratch, place, q_first, q_rows);
  }

 private:
  using TileSums = Sums<threads, width>;
  struct State {
    TileScores scores;
    TileSums out;
    float maximum[TileScores::own];  // of the own rows so far
    float sum[TileScores::own];      // of the own rows' exponentials that this thread made
  };

  /// Caps scores, and makes those −inf that are masked or of no key.
  KOKKOS_FORCEINLINE_FUNCTION void limit(int thread, TileScores& scores, const Scratch& scratch, int q_rows,
                                         int kv_rows, Coverage coverage) const {
    if (in.soft_cap > 0.0f) {
      ANNULUS_UNROLL
      for (int i = 0; i < scores.own; ++i) {
        ANNULUS_UNROLL
        for (int j = 0; j < scores.others; ++j)
          scores.value[i][j] = CappedScore::of(scores.value[i][j], in.soft_cap).value;
      }
    }
    if (coverage == Coverage::full && kv_rows == rows) return;
    ANNULUS_UNROLL
    for (int i = 0; i < scores.own; ++i) {
      const int query = scores.own_row(thread, i);
      ANNULUS_UNROLL
      for (int j = 0; j < scores.others; ++j) {
        const int key = scores.other_row(thread, j);
        const bool allowed =
            key < kv_rows && (coverage == Coverage::full ||
                              (query < q_rows && allows(in.mask, scratch.queries[query], scratch.keys[key])));
        if (!allowed) scores.value[i][j] = -Kokkos::Experimental::infinity_v<float>;
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void put_maxima(int thread, const TileScores& scores, float* partial) const {
    ANNULUS_UNROLL
    for (int i = 0; i < scores.own; ++i) {
      float high = scores.value[i][0];
      ANNULUS_UNROLL
      for (int j = 1; j < scores.others; ++j) high = high < scores.value[i][j] ? scores.value[i][j] : high;
      partial[thread / across * rows + scores.own_row(thread, i)] = high;
    }
  }

  /// scores = exp(scores − maximum), which it writes to scratch; row[0] = the factor of what was before.
  KOKKOS_FORCEINLINE_FUNCTION void exponentiate(int thread, State& state, const Scratch& scratch) const {
    TileScores& scores = state.scores;
    ANNULUS_UNROLL
    for (int i = 0; i < scores.own; ++i) {
      const int query = scores.own_row(thread, i);
      float high = state.maximum[i];
      ANNULUS_UNROLL
      for (int part = 0; part < scores.step; ++part) {
        const float other = scratch.partial[part * rows + query];
        high = high < other ? other : high;
      }
      const float correction = Kokkos::exp(state.maximum[i] - finite(high));
      state.maximum[i] = high;
      float sum = 0.0f;
      ANNULUS_UNROLL
      for (int j = 0; j < scores.others; ++j) {
        scores.value[i][j] = Kokkos::exp(scores.value[i][j] - finite(high));
        sum += scores.value[i][j];
      }
      state.sum[i] = correction * state.sum[i] + sum;
      if (thread < across) scratch.row[0][query] = correction;
    }
    scores.put(thread, scratch.scores);
  }

  KOKKOS_FORCEINLINE_FUNCTION void rescale(int thread, TileSums& out, const float* corrections) const {
    ANNULUS_UNROLL
    for (int m = 0; m < out.own; ++m) {
      const float factor = corrections[out.own_row(thread, m)];
      ANNULUS_UNROLL
      for (int g = 0; g < out.groups; ++g) {
        ANNULUS_UNROLL
        for (int e = 0; e < 4; ++e) out.value[m][g][e] *= factor;
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void merge(const Member& member, Threads<Exec, threads, State>& states,
                                         const Scratch& scratch, const TeamTile& place, std::int64_t q_first,
                                         int q_rows) const {
    states.each(member, [&](int thread, State& state) {
      ANNULUS_UNROLL
      for (int i = 0; i < TileScores::own; ++i) {
        const int query = TileScores::own_row(thread, i);
        scratch.partial[thread / across * rows + query] = state.sum[i];
        if (thread < across) scratch.row[1][query] = state.maximum[i];
      }
    });
    member.team_barrier();
    // row[0]: the weight that the row's result is merged with; row[1]: its sum.
    states.each(member, [&](int thread, State&) {
      for (int i = thread; i < q_rows; i += threads) {
        float total = 0.0f;
        ANNULUS_UNROLL
        for (int part = 0; part < TileScores::step; ++part) total += scratch.partial[part * rows + i];
        float weight = 0.0f;
        if (total != 0.0f) {  // else no key; a NaN goes on, so that it is seen
          float& running = lse(place.batch, place.head, q_first + i);
          const RowMerge step = RowMerge::of(running, scratch.row[1][i] + Kokkos::log(total));
          running = step.lse;
          weight = step.weight;
        }
        scratch.row[0][i] = weight;
        scratch.row[1][i] = total;
      }
    });
    member.team_barrier();
    states.each(member, [&](int thread, State& state) {
      ANNULUS_UNROLL
      for (int m = 0; m < TileSums::own; ++m) {
        const int query = TileSums::own_row(thread, m);
        if (query >= q_rows || scratch.row[1][query] == 0.0f) continue;
        const float weight = scratch.row[0][query], total = scratch.row[1][query];
        ANNULUS_UNROLL
        for (int g = 0; g < TileSums::groups; ++g) {
          if (TileSums::column(thread, g) >= out.extent_int(3)) continue;  // which is a multiple of 8
          float* const running = &out(place.batch, place.head, q_first + query, TileSums::column(thread, g));
          ANNULUS_UNROLL
          for (int e = 0; e < 4; ++e) running[e] -= weight * (running[e] - state.out.value[m][g][e] / total);
        }
      }
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
  with_width(std::max(in.q.extent_int(3), in.v.extent_int(3)), [&](auto width) {
    launch(exec, "annulus::attention::portable::forward", ForwardKernel<Exec, T, width()>(in, out, lse));
  });
}

}  // namespace annulus::attention::portable
