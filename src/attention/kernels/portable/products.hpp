#pragma once

#include "attention/kernels/portable/launch.hpp"
#include "attention/kernels/portable/stage.hpp"

namespace annulus::attention::portable {

/// cap · tanh(score / cap), and its derivative by the score.
struct CappedScore {
  float value, derivative;
  KOKKOS_FORCEINLINE_FUNCTION static CappedScore of(float score, float cap) {
    const float t = Kokkos::tanh(score / cap);
    return {cap * t, 1.0f - t * t};
  }
};

/// A thread's products of `rows` rows of own operands with rows of the other side:
/// value[i][j] is of own row thread % 16 + 16 i and of the other side's row thread / 16 + threads / 16 · j.
template <int threads>
struct Scores {
  static constexpr int own = rows / across, step = threads / across, others = rows / step;
  float value[own][others];

  KOKKOS_FORCEINLINE_FUNCTION static int own_row(int thread, int i) { return thread % across + across * i; }
  KOKKOS_FORCEINLINE_FUNCTION static int other_row(int thread, int j) { return thread / across + step * j; }

  KOKKOS_FORCEINLINE_FUNCTION void clear() {
    ANNULUS_UNROLL
    for (int i = 0; i < own; ++i) {
      ANNULUS_UNROLL
      for (int j = 0; j < others; ++j) value[i][j] = 0.0f;
    }
  }
  /// Adds the products of the staged columns.
  KOKKOS_FORCEINLINE_FUNCTION void add(int thread, const float* stage) {
    const float* const a = stage + own_row(thread, 0) * stage_stride;
    const float* const b = stage + rows * stage_stride + other_row(thread, 0) * stage_stride;
    ANNULUS_UNROLL_TWICE
    for (int c = 0; c < depth; c += 4) {
      Pack<4> left[own];
      ANNULUS_UNROLL
      for (int i = 0; i < own; ++i) left[i] = load<4>(a + i * across * stage_stride + c);
      ANNULUS_UNROLL
      for (int j = 0; j < others; ++j) {
        const Pack<4> right = load<4>(b + j * step * stage_stride + c);
        ANNULUS_UNROLL
        for (int i = 0; i < own; ++i) {
          ANNULUS_UNROLL
          for (int e = 0; e < 4; ++e) value[i][j] += left[i][e] * right[e];
        }
      }
    }
  }
  /// scores (other side's rows, own rows) = value.
  KOKKOS_FORCEINLINE_FUNCTION void put(int thread, float* scores) const {
    ANNULUS_UNROLL
    for (int i = 0; i < own; ++i) {
      ANNULUS_UNROLL
      for (int j = 0; j < others; ++j)
        scores[other_row(thread, j) * score_stride + own_row(thread, i)] = value[i][j];
    }
  }
};

/// A thread's part of a result (rows, width): value[m][g][e] is of own row
/// thread / 16 · own + m and of column 64 g + thread % 16 · 4 + e.
template <int threads, int width>
struct Sums {
  static constexpr int own = rows / (threads / across), groups = width / (4 * across);
  float value[own][groups][4];

  KOKKOS_FORCEINLINE_FUNCTION static int own_row(int thread, int m) { return thread / across * own + m; }
  KOKKOS_FORCEINLINE_FUNCTION static int column(int thread, int g) {
    return 4 * across * g + thread % across * 4;
  }

  KOKKOS_FORCEINLINE_FUNCTION void clear() {
    ANNULUS_UNROLL
    for (int m = 0; m < own; ++m) {
      ANNULUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ANNULUS_UNROLL
        for (int e = 0; e < 4; ++e) value[m][g][e] = 0.0f;
      }
    }
  }
  /// Adds Σ scores(r, own row) · tile(r, column) over `count` rows; scores from the first of them on.
  template <int count>
  KOKKOS_FORCEINLINE_FUNCTION void add(int thread, const float* scores, const float* tile) {
    const float* const a = scores + own_row(thread, 0);
    const float* const b = tile + column(thread, 0);
    ANNULUS_UNROLL_TWICE
    for (int r = 0; r < count; ++r) {
      Pack<4> left[own / 4], right[groups];
      ANNULUS_UNROLL
      for (int m = 0; m < own / 4; ++m) left[m] = load<4>(a + r * score_stride + 4 * m);
      ANNULUS_UNROLL
      for (int g = 0; g < groups; ++g) right[g] = load<4>(b + r * width + 4 * across * g);
      ANNULUS_UNROLL
      for (int m = 0; m < own; ++m) {
        ANNULUS_UNROLL
        for (int g = 0; g < groups; ++g) {
          ANNULUS_UNROLL
          for (int e = 0; e < 4; ++e) value[m][g][e] += left[m / 4][m % 4] * right[g][e];
        }
      }
    }
  }
  /// array(batch, head, first_row + own row, column) += factor · value, for the rows below `count`.
  template <class View>
  KOKKOS_FORCEINLINE_FUNCTION void add_to(int thread, const View& array, std::int64_t batch,
                                          std::int64_t head, std::int64_t first_row, int count,
                                          float factor) const {
    ANNULUS_UNROLL
    for (int m = 0; m < own; ++m) {
      if (own_row(thread, m) >= count) continue;
      ANNULUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        if (column(thread, g) >= array.extent_int(3)) continue;  // which is a multiple of 8
        float* const to = &array(batch, head, first_row + own_row(thread, m), column(thread, g));
        ANNULUS_UNROLL
        for (int e = 0; e < 4; ++e) to[e] += factor * value[m][g][e];
      }
    }
  }
};

/// Products of all columns of two sources: `scores_of(state)` of every thread += own · other. Ends behind a
/// barrier.
template <int threads, class Member, class States, class Own, class Other, class ScoresOf>
KOKKOS_FORCEINLINE_FUNCTION void multiply_rows(const Member& member, States& states, float* stage,
                                               const Own& own, const Other& other,
                                               const ScoresOf& scores_of) {
  for (int first = 0; first < own.columns; first += depth) {
    states.each(member, [&](int thread, auto&) {
      stage_columns<threads>(thread, own, first, stage);
      stage_columns<threads>(thread, other, first, stage + rows * stage_stride);
    });
    member.team_barrier();
    states.each(member, [&](int thread, auto& state) { scores_of(state).add(thread, stage); });
    member.team_barrier();
  }
}

/// `sums_of(state)` of every thread += scoresᵀ · other, of the first `count` rows of the other side. The
/// scores are written before, and become visible with the first barrier. Ends behind a barrier.
template <int threads, int width, class Member, class States, class Other, class SumsOf>
KOKKOS_FORCEINLINE_FUNCTION void multiply_scores(const Member& member, States& states, const Scratch& scratch,
                                                 const Other& other, int count, const SumsOf& sums_of) {
  constexpr int part = staged_rows<width>;
  for (int first = 0; first < count; first += part) {
    states.each(member, [&](int thread, auto&) {
      stage_rows<threads, width, part>(thread, other, first, scratch.stage);
    });
    member.team_barrier();
    states.each(member, [&](int thread, auto& state) {
      sums_of(state).template add<part>(thread, scratch.scores + first * score_stride, scratch.stage);
    });
    member.team_barrier();
  }
}

}  // namespace annulus::attention::portable
