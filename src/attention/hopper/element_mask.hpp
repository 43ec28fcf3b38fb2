#pragma once

#include "attention/hopper/residue_classes.hpp"
#include "attention/hopper/walk.hpp"

/// What spans and bits leave of the elements of a tile that a thread holds: rows `row` and `row` + 8 of the
/// own side, columns 8j + `own_column` + e of the other, at place 4j + 2i + e (wgmma.hpp).
namespace annulus::attention::hopper {

/// Spans of own rows `own_row` and `own_row` + 8 of a class; rows behind its end see nothing. `own_rows`: of
/// the shard. `table`: of a head, where heads have block lists of their own.
__device__ __forceinline__ void load_spans(RowSpan (&spans)[2], const WalkTables& walk,
                                           const ResidueClasses& classes, int residue, int table,
                                           int own_rows, int own_row) {
  const RowSpan* const from =
      walk.spans + residue * classes.most_rows(own_rows) + table * walk.spans_of_table;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    spans[i] = own_row + 8 * i < classes.rows(own_rows, residue) ? from[own_row + 8 * i] : RowSpan{0, 0};
  }
}

/// Calls action(place) for each element of a tile of `columns` whose bit is not set. Rows behind `own_rows`
/// have none. `first_word`: of the list. `of_32_rows`: bits may stand for 32 rows, which the code for one
/// list has no need of.
template <int columns, bool of_32_rows, class Action>
__device__ __forceinline__ void for_each_missing_bit(const MaskBits& bits, std::int64_t first_word,
                                                     int own_row, int own_rows, int tile, int own_column,
                                                     const Action& action) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (own_row + 8 * i >= own_rows) continue;
    const unsigned* const from = bits.words + first_word + bits.rows[own_row + 8 * i] * bits.words_of_row;
    const int first = tile * (columns / 32);
#pragma unroll
    for (int w = 0; w < columns / 32; ++w) {
      const unsigned word = (of_32_rows ? bits.of_rows(from, first, w) : from[first + w]) >> own_column;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if ((word >> (8 * j + e) & 1) == 0) action(4 * (4 * w + j) + 2 * i + e);
        }
      }
    }
  }
}

}  // namespace annulus::attention::hopper
