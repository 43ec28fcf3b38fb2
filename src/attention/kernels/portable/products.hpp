#pragma once

#include <Kokkos_Core.hpp>

#include <annulus/base/division.hpp>

#include "attention/kernels/portable/tuning.hpp"

namespace annulus::attention::portable {

/// A register tile of a matrix product.
template <class Exec>
struct RegisterTile {
  static constexpr int rows = Registers<Exec>::rows, columns = Registers<Exec>::columns;
  float value[rows][columns] = {};

  /// value(m, n) += Σ_k a[m·a_stride + k] · b[k·b_stride + n], k < depth.
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(int depth, const float* a, int a_stride, const float* b,
                                            int b_stride) {
    for (int k = 0; k < depth; ++k) {
      for (int m = 0; m < rows; ++m) {
        const float factor = a[m * a_stride + k];
        for (int n = 0; n < columns; ++n) value[m][n] += factor * b[k * b_stride + n];
      }
    }
  }

  /// value(m, n) += Σ_k a[k·a_stride + m] · b[k·b_stride + n], k < depth: the left factor transposed.
  KOKKOS_FORCEINLINE_FUNCTION void add_transposed(int depth, const float* a, int a_stride, const float* b,
                                                  int b_stride) {
    for (int k = 0; k < depth; ++k) {
      for (int m = 0; m < rows; ++m) {
        const float factor = a[k * a_stride + m];
        for (int n = 0; n < columns; ++n) value[m][n] += factor * b[k * b_stride + n];
      }
    }
  }
};

/// cap · tanh(score / cap), and its derivative by the score.
struct CappedScore {
  float value, derivative;
  KOKKOS_FORCEINLINE_FUNCTION static CappedScore of(float score, float cap) {
    const float t = Kokkos::tanh(score / cap);
    return {cap * t, 1.0f - t * t};
  }
};

/// Deals the register tiles of a (rows × columns) matrix out to the threads of a team: action(first row,
/// first column).
template <class Exec, class Member, class Action>
KOKKOS_FORCEINLINE_FUNCTION void for_each_register_tile(const Member& member, int rows, int columns,
                                                        const Action& action) {
  constexpr int tile_rows = Registers<Exec>::rows, tile_columns = Registers<Exec>::columns;
  const int down = ceil_divide(rows, tile_rows), across = ceil_divide(columns, tile_columns);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(member, down * across),
                       [&](int tile) { action(tile / across * tile_rows, tile % across * tile_columns); });
}

}  // namespace annulus::attention::portable
