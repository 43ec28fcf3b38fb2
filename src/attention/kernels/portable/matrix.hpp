#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/base/division.hpp>

#include "attention/kernels/portable/tuning.hpp"

namespace annulus::attention::portable {

/// Rows of one (batch, head) of an array, from some row on: (rows, head_dim).
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;  ///< between rows, in elements

  template <class View>
  KOKKOS_FUNCTION static HeadRows of(const View& array, std::int64_t batch, std::int64_t head,
                                     std::int64_t first_row) {
    return {&array(batch, head, first_row, 0), static_cast<std::int64_t>(array.stride(2))};
  }
  KOKKOS_FUNCTION T* row(std::int64_t i) const { return data + i * stride; }
};

/// tile(i, c) = factor · source(i, c) in fp32 for the `rows` rows that `uses(i)`; zero elsewhere up to whole
/// register tiles. tile (inner, width).
template <class Exec, class Member, class T, class Uses>
KOKKOS_FUNCTION void load_rows(const Member& member, const Tiles& tiles, int head_dim,
                               HeadRows<const T> source, int rows, const Uses& uses, float factor,
                               float* tile) {
  constexpr int step = Registers<Exec>::rows;
  const int padded = round_up(rows, step);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(member, padded), [&](int i) {
    float* const to = tile + i * tiles.width;
    const int filled = i < rows && uses(i) ? head_dim : 0;
    const T* const from = source.row(i);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, filled),
                         [&](int c) { to[c] = factor * static_cast<float>(from[c]); });
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, filled, tiles.width),
                         [&](int c) { to[c] = 0.0f; });
  });
}

/// tile(c, i) = factor · source(i, c) in fp32 for the `rows` rows that `uses(i)`; zero in the other rows.
/// tile (head_dim, own).
template <class Member, class T, class Uses>
KOKKOS_FUNCTION void load_transposed(const Member& member, const Tiles& tiles, int head_dim,
                                     HeadRows<const T> source, int rows, const Uses& uses, float factor,
                                     float* tile) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(member, tiles.own), [&](int i) {
    const bool used = i < rows && uses(i);
    const T* const from = source.row(i);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, head_dim), [&](int c) {
      tile[c * tiles.own + i] = used ? factor * static_cast<float>(from[c]) : 0.0f;
    });
  });
}

/// Every row counts: the `uses` of operands in which no row is left out.
struct AllRows {
  KOKKOS_FUNCTION constexpr bool operator()(int) const { return true; }
};

}  // namespace annulus::attention::portable
