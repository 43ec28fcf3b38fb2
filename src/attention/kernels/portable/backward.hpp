#pragma once

#include <algorithm>
#include <annulus/base/division.hpp>

#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/portable/portable.hpp"
#include "attention/kernels/portable/products.hpp"
#include "attention/kernels/portable/tile_mask.hpp"

namespace annulus::attention::portable {

/// What both kernels of the backward pass read.
template <class Exec, class T>
struct BackwardInput {
  Operands<T, Exec> in;
  Strided4<const T, Exec> d_out;    // (batch, heads, q_rows, v_head_dim)
  Strided3<const float, Exec> lse;  // (batch, heads, q_rows)
  Strided3<const float, Exec> d;    // (batch, heads, q_rows)
  bool packed;                      // operands' rows start at multiples of 16 bytes
};

// Scratch::row in the backward pass: the LSE of each query row, and d.
inline constexpr int lse_row = 0, d_row = 1;

/// Reads LSE and d of `count` query rows. Rows without keys (LSE = −inf) and rows behind the end get LSE =
/// +inf, which makes their probabilities exp(score − LSE) zero.
template <class Exec, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_statistics(int thread, const BackwardInput<Exec, T>& input,
                                                 std::int64_t batch, std::int64_t head, std::int64_t first,
                                                 int count, const Scratch& scratch) {
  constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
  for (int i = thread; i < rows; i += backward_threads) {
    const bool used = i < count && input.lse(batch, head, first + i) != -infinity;
    scratch.row[lse_row][i] = used ? input.lse(batch, head, first + i) : infinity;
    scratch.row[d_row][i] = used ? input.d(batch, head, first + i) : 0.0f;
  }
}

/// True where a query row has keys, from what load_statistics wrote.
struct HasProbabilities {
  const float* lse;
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int row) const {
    return lse[row] != Kokkos::Experimental::infinity_v<float>;
  }
};

/// Makes P = exp(S − LSE), 0 where masked, and dS = P∘(dO·Vᵀ − d) times the derivative of capped scores of a
/// tile's scores S and products dO·Vᵀ (BurstEngine Algorithm 2).
template <bool owns_queries, class TileScores>
KOKKOS_FORCEINLINE_FUNCTION void make_probabilities(int thread, TileScores& score, TileScores& gradient,
                                                    const Scratch& scratch, const MaskRule& rule,
                                                    float soft_cap, int q_rows, int kv_rows,
                                                    Coverage coverage) {
  ANNULUS_UNROLL
  for (int i = 0; i < TileScores::own; ++i) {
    const int own = TileScores::own_row(thread, i);
    ANNULUS_UNROLL
    for (int j = 0; j < TileScores::others; ++j) {
      const int other = TileScores::other_row(thread, j);
      const int query = owns_queries ? own : other, key = owns_queries ? other : own;
      float derivative = 1.0f;
      if (soft_cap > 0.0f) {
        const CappedScore capped = CappedScore::of(score.value[i][j], soft_cap);
        score.value[i][j] = capped.value;
        derivative = capped.derivative;
      }
      const bool allowed =
          query < q_rows && key < kv_rows &&
          (coverage == Coverage::full || allows(rule, scratch.queries[query], scratch.keys[key]));
      const float p = allowed ? Kokkos::exp(score.value[i][j] - scratch.row[lse_row][query]) : 0.0f;
      score.value[i][j] = p;
      gradient.value[i][j] = p * (gradient.value[i][j] - scratch.row[d_row][query]) * derivative;
    }
  }
}

/// dQ: a team owns a tile of queries and walks over the keys, so that nobody else adds to its rows.
template <class Exec, class T, int width>
struct QueryGradientKernel {
  static constexpr int threads = backward_threads, teams = backward_teams<width>;
  using Member = portable::Member<Exec, threads>;

  BackwardInput<Exec, T> input;
  Strided4<float, Exec> dq;  // (batch, heads, q_rows, head_dim)
  std::int64_t group, heads, q_tiles;

  QueryGradientKernel(const BackwardInput<Exec, T>& input, const Strided4<float, Exec>& dq)
      : input(input),
        dq(dq),
        group(dq.extent(1) / input.in.k.extent(1)),
        heads(dq.extent(1)),
        q_tiles(ceil_divide<std::int64_t>(input.in.q_positions.count, rows)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(dq.extent(0)) * heads * q_tiles; }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const Operands<T, Exec>& in = input.in;
    const TeamTile place = TeamTile::of(member.league_rank(), heads, q_tiles);
    const std::int64_t kv_head = place.head / group;
    const std::int64_t q_first = (q_tiles - 1 - place.tile) * rows;  // causal: the longest first
    const PositionMap q = tile_of(in.q_positions, q_first, in.q_positions.count);
    const int q_rows = static_cast<int>(q.count);
    const RowRange range = key_rows(in.mask, q, in.keys());
    if (range.empty()) return;

    const Scratch scratch(member);
    Threads<Exec, threads, State> states;
    states.each(member, [&](int thread, State& state) {
      state.dq.clear();
      load_statistics(thread, input, place.batch, place.head, q_first, q_rows, scratch);
      load_queries<threads>(thread, in.mask, q, scratch.queries);
    });
    member.team_barrier();
    const HasProbabilities has_keys{scratch.row[lse_row]};
    const auto queries = source_of(in.q, place.batch, place.head, q_first, in.scale, input.packed, has_keys);
    const auto d_out = source_of(input.d_out, place.batch, place.head, q_first, 1.0f, input.packed, has_keys);

    for (std::int64_t first = range.begin; first < range.end; first += rows) {
      const KeyPositions kv = tile_of(in.keys(), first, range.end);
      const Coverage coverage = in.mask.classify(q, kv);
      if (coverage == Coverage::empty) continue;
      const int kv_rows = static_cast<int>(kv.count());
      const auto keys = source_of(in.k, place.batch, kv_head, first, 1.0f, input.packed, Below{kv_rows});
      const auto values = source_of(in.v, place.batch, kv_head, first, 1.0f, input.packed, Below{kv_rows});
      states.each(member, [&](int thread, State& state) {
        state.score.clear();
        state.gradient.clear();
        // Those of the last tile were read before its last barrier.
        if (coverage == Coverage::partial) load_keys<threads>(thread, kv, scratch.keys);
      });
      multiply_rows<threads>(member, states, scratch.stage, queries, keys,
                             [](State& state) -> TileScores& { return state.score; });
      multiply_rows<threads>(member, states, scratch.stage, d_out, values,
                             [](State& state) -> TileScores& { return state.gradient; });
      states.each(member, [&](int thread, State& state) {
        make_probabilities<true>(thread, state.score, state.gradient, scratch, in.mask, in.soft_cap, q_rows,
                                 kv_rows, coverage);
        state.gradient.put(thread, scratch.scores);
      });
      multiply_scores<threads, width>(member, states, scratch, keys, kv_rows,
                                      [](State& state) -> TileSums& { return state.dq; });
    }
    states.each(member, [&](int thread, State& state) {
      state.dq.add_to(thread, dq, place.batch, place.head, q_first, q_rows, in.scale);
    });
  }

 private:
  using TileScores = Scores<threads>;
  using TileSums = Sums<threads, width>;
  struct State {
    TileScores score, gradient;
    TileSums dq;
  };
};

/// dK and dV: a team owns a tile of keys of one kv head and walks over the queries of all heads that read it.
template <class Exec, class T, int width>
struct KeyGradientKernel {
  static constexpr int threads = backward_threads, teams = backward_teams<width>;
  using Member = portable::Member<Exec, threads>;

  BackwardInput<Exec, T> input;
  Strided4<float, Exec> dk, dv;  // (batch, kv_heads, kv_rows, head_dim), and v_head_dim
  std::int64_t group, kv_heads, kv_tiles;

  KeyGradientKernel(const BackwardInput<Exec, T>& input, const Strided4<float, Exec>& dk,
                    const Strided4<float, Exec>& dv)
      : input(input),
        dk(dk),
        dv(dv),
        group(input.in.q.extent(1) / dk.extent(1)),
        kv_heads(dk.extent(1)),
        kv_tiles(ceil_divide<std::int64_t>(input.in.kv_positions.count, rows)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(dk.extent(0)) * kv_heads * kv_tiles; }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const Operands<T, Exec>& in = input.in;
    const TeamTile place = TeamTile::of(member.league_rank(), kv_heads, kv_tiles);
    const std::int64_t kv_first = place.tile * rows;
    const KeyPositions kv = tile_of(in.keys(), kv_first, in.kv_positions.count);
    const int kv_rows = static_cast<int>(kv.count());
    const RowRange range = query_rows(in.mask, in.q_positions, kv);
    if (range.empty()) return;

    const Scratch scratch(member);
    Threads<Exec, threads, State> states;
    states.each(member, [&](int thread, State& state) {
      state.dk.clear();
      state.dv.clear();
      load_keys<threads>(thread, kv, scratch.keys);
    });
    const auto keys = source_of(in.k, place.batch, place.head, kv_first, 1.0f, input.packed, Below{kv_rows});
    const auto values =
        source_of(in.v, place.batch, place.head, kv_first, 1.0f, input.packed, Below{kv_rows});
    const HasProbabilities has_keys{scratch.row[lse_row]};

    for (std::int64_t head = place.head * group; head < (place.head + 1) * group; ++head) {
      for (std::int64_t first = range.begin; first < range.end; first += rows) {
        const PositionMap q = tile_of(in.q_positions, first, range.end);
        const Coverage coverage = in.mask.classify(q, kv);
        if (coverage == Coverage::empty) continue;
        const int q_rows = static_cast<int>(q.count);
        states.each(member, [&](int thread, State& state) {
          state.score.clear();
          state.gradient.clear();
          load_statistics(thread, input, place.batch, head, first, q_rows, scratch);
          if (coverage == Coverage::partial) load_queries<threads>(thread, in.mask, q, scratch.queries);
        });
        member.team_barrier();
        const auto queries = source_of(in.q, place.batch, head, first, in.scale, input.packed, has_keys);
        const auto d_out = source_of(input.d_out, place.batch, head, first, 1.0f, input.packed, has_keys);
        multiply_rows<threads>(member, states, scratch.stage, keys, queries,
                               [](State& state) -> TileScores& { return state.score; });
        multiply_rows<threads>(member, states, scratch.stage, values, d_out,
                               [](State& state) -> TileScores& { return state.gradient; });
        states.each(member, [&](int thread, State& state) {
          make_probabilities<false>(thread, state.score, state.gradient, scratch, in.mask, in.soft_cap,
                                    q_rows, kv_rows, coverage);
          state.score.put(thread, scratch.scores);
        });
        multiply_scores<threads, width>(member, states, scratch, d_out, q_rows,
                                        [](State& state) -> TileSums& { return state.dv; });
        states.each(member, [&](int thread, State& state) { state.gradient.put(thread, scratch.scores); });
        multiply_scores<threads, width>(member, states, scratch, queries, q_rows,
                                        [](State& state) -> TileSums& { return state.dk; });
      }
    }
    states.each(member, [&](int thread, State& state) {
      state.dk.add_to(thread, dk, place.batch, place.head, kv_first, kv_rows, 1.0f);
      state.dv.add_to(thread, dv, place.batch, place.head, kv_first, kv_rows, 1.0f);
    });
  }

 private:
  using TileScores = Scores<threads>;
  using TileSums = Sums<threads, width>;
  struct State {
    TileScores score, gradient;
    TileSums dk, dv;
  };
};

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays) {
  const bool packed = gpu::aligned(in.q, 16) && gpu::aligned(in.k, 16) && gpu::aligned(in.v, 16) &&
                      gpu::aligned(arrays.d_out, 16);
  const BackwardInput<Exec, T> input{in, arrays.d_out, arrays.lse, arrays.d, packed};
  with_width(std::max(in.q.extent_int(3), in.v.extent_int(3)), [&](auto width) {
    launch(exec, "annulus::attention::portable::backward_dq",
           QueryGradientKernel<Exec, T, width()>(input, arrays.dq));
    launch(exec, "annulus::attention::portable::backward_dkv",
           KeyGradientKernel<Exec, T, width()>(input, arrays.dk, arrays.dv));
  });
}

}  // namespace annulus::attention::portable
