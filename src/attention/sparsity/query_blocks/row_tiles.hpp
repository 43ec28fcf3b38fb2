#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string>

#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/query_blocks/top_blocks.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::sparsity {

/// Scratch of (lists, rows, columns) numbers, in tiles of `lanes` rows: a tile holds the numbers of its rows
/// column by column. Where each thread goes through the columns of a row, neighbouring threads of a device
/// read neighbouring addresses, and a thread of the host reads its own.
template <class Exec>
struct RowTiles {
  static constexpr std::int64_t lanes = annulus::detail::host_memory<Exec> ? 1 : TopBlocks::tile_rows;

  Array1<float, Exec> values;  // not initialized
  std::int64_t lists, rows, columns;

  /// The memory that `values` needs, of as many rows as fill tiles of a device on the host, too: predictions
  /// of memory (SelectionMemory) are the same for both.
  static Owned<Array1<float, Exec>> memory(const Exec& exec, const std::string& label, std::int64_t lists,
                                           std::int64_t rows, std::int64_t columns) {
    return Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::workspace, label,
                                                     lists * round_up(rows, TopBlocks::tile_rows) * columns);
  }

  /// Where a number lies in `values`.
  KOKKOS_FUNCTION std::int64_t index(std::int64_t list, std::int64_t row, std::int64_t column) const {
    return ((list * tiles() + row / lanes) * columns + column) * lanes + row % lanes;
  }
  KOKKOS_FUNCTION float& operator()(std::int64_t list, std::int64_t row, std::int64_t column) const {
    return values.data()[index(list, row, column)];
  }

  struct Place {
    std::int64_t list, row, column;
  };
  /// Numbers with those of the rows that fill the last tile, and which one lies at `index`: its row may be
  /// none of `rows`.
  std::int64_t size() const { return lists * tiles() * columns * lanes; }
  KOKKOS_FUNCTION Place at(std::int64_t index) const {
    const std::int64_t tile = index / lanes / columns;
    return {tile / tiles(), tile % tiles() * lanes + index % lanes, index / lanes % columns};
  }

  /// Calls f(column, number) for columns first … end − 1 of a row, in order. On devices many are loaded
  /// before the first call.
  template <class F>
  KOKKOS_FUNCTION void for_each(std::int64_t list, std::int64_t row, std::int64_t first, std::int64_t end,
                                const F& f) const {
    constexpr int ahead = lanes == 1 ? 1 : 16;
    for (std::int64_t column = first; column < end; column += ahead) {
      const int count = end - column < ahead ? static_cast<int>(end - column) : ahead;
      const float* const from = &(*this)(list, row, column);
      float loaded[ahead];  // without branches, so that all loads are under way at once
      for (int j = 0; j < ahead; ++j) loaded[j] = from[(j < count ? j : 0) * lanes];
      for (int j = 0; j < ahead; ++j)
        if (j < count) f(column + j, loaded[j]);
    }
  }

 private:
  KOKKOS_FUNCTION std::int64_t tiles() const { return ceil_divide(rows, lanes); }
};

/// One thread for each of `count` rows, in blocks of few threads: rows may be too few for larger ones on each
/// multiprocessor of a GPU.
template <class Exec>
auto policy_of_rows(const Exec& exec, std::int64_t count) {
  return Kokkos::RangePolicy<Exec, Kokkos::LaunchBounds<64>>(exec, 0, count);
}

}  // namespace annulus::sparsity
