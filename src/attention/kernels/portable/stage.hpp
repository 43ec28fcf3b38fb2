#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/device_code.hpp>
#include <cstdint>
#include <type_traits>

#include "attention/kernels/portable/tuning.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::attention::portable {

/// Eight neighbouring elements as fp32, one by one where rows do not start at multiples of 16 bytes.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<8> load_eight(const T* from, bool packed) {
  if (packed) return load<8>(from);
  Pack<8> to;
  ANNULUS_UNROLL
  for (int i = 0; i < 8; ++i) to[i] = static_cast<float>(from[i]);
  return to;
}

/// Rows of one (batch, head) of an operand, from some row on: those that `uses(row)` times a factor, zeros in
/// the place of all others.
template <class T, class Uses>
struct Source {
  const T* data;
  std::int64_t stride;  ///< between rows, in elements
  int columns;
  float factor;
  bool packed;  ///< rows start at multiples of 16 bytes
  Uses uses;

  /// to[0, 8) = columns [column, column + 8) of a row; zeros behind the last column.
  KOKKOS_FORCEINLINE_FUNCTION void stage_eight(int row, int column, float* to) const {
    Pack<8> values = {};
    if (column < columns && uses(row)) values = load_eight(data + row * stride + column, packed);
    ANNULUS_UNROLL
    for (int i = 0; i < 8; ++i) values[i] *= factor;
    store(to, values);
  }
};
template <class View, class Uses>
KOKKOS_FORCEINLINE_FUNCTION auto source_of(const View& array, std::int64_t batch, std::int64_t head,
                                           std::int64_t first_row, float factor, bool packed,
                                           const Uses& uses) {
  return Source<std::remove_const_t<typename View::value_type>, Uses>{
      &array(batch, head, first_row, 0),
      static_cast<std::int64_t>(array.stride(2)),
      array.extent_int(3),
      factor,
      packed,
      uses};
}

/// The `uses` of operands whose rows end somewhere.
struct Below {
  int count;
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int row) const { return row < count; }
};

/// tile (rows, stage_stride) = columns [first, first + depth) of `from`.
template <int threads, class From>
KOKKOS_FORCEINLINE_FUNCTION void stage_columns(int thread, const From& from, int first, float* tile) {
  for (int part = thread; part < rows * depth / 8; part += threads) {
    const int row = part / (depth / 8), column = part % (depth / 8) * 8;
    from.stage_eight(row, first + column, tile + row * stage_stride + column);
  }
}

/// tile (count, width) = rows [first, first + count) of `from`.
template <int threads, int width, int count, class From>
KOKKOS_FORCEINLINE_FUNCTION void stage_rows(int thread, const From& from, int first, float* tile) {
  for (int part = thread; part < count * (width / 8); part += threads) {
    const int row = part / (width / 8), column = part % (width / 8) * 8;
    from.stage_eight(first + row, column, tile + row * width + column);
  }
}

}  // namespace annulus::attention::portable
