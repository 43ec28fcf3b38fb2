#pragma once

#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/schedule/tile_loop.hpp"

/// What spans and bits leave of the elements of a tile that a thread holds: rows `row` and `row` + 8 of the
/// own side, columns 8j + `own_column` + e of the other, at index 4j + 2i + e (ptx/wgmma.hpp).
namespace annulus::attention::hopper {

/// Spans of own rows `own_row` and `own_row` + 8 of a class; rows behind its end see nothing. `own_rows`: of
/// the shard. `table`: of a head, where heads have block lists of their own.
__device__ __forceinline__ void load_spans(RowSpan (&spans)[2], const TileTables& tables,
                                           const DilationClasses& classes, int dilation_class, int table,
                                           int own_rows, int own_row) {
  const RowSpan* const from =
      tables.spans + dilation_class * classes.most_rows(own_rows) + table * tables.spans_of_table;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    spans[i] =
        own_row + 8 * i < classes.rows(own_rows, dilation_class) ? from[own_row + 8 * i] : RowSpan{0, 0};
  }
}

/// What a block list leaves of a tile of `columns`, for own rows `own_row` and `own_row` + 8. load() and its
/// use are apart, so that the words can arrive while scores are computed. `of_32_rows`: bits may stand for 32
/// rows, which the code for one list has no need of.
template <int columns, bool of_32_rows>
class TileBits {
 public:
  /// Rows behind `own_rows` have all bits. `first_word`: of the list.
  __device__ __forceinline__ void load(const MaskBits& bits, std::int64_t first_word, int own_row,
                                       int own_rows, int tile) {
    const int first = tile * words_of_tile;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool some = own_row + 8 * i < own_rows;
      const unsigned* const from = bits.of_own_row(some ? own_row + 8 * i : 0) + first_word;
#pragma unroll
      for (int w = 0; w < words_of_tile; ++w) words_[i][w] = ~0u;
      if (of_32_rows && bits.of_32_rows) {  // all in one word, as tiles have a power of two of rows
        if (some) words_[i][0] = from[first / 32];
      } else {
#pragma unroll
        for (int w = 0; w < words_of_tile; ++w)
          if (some) words_[i][w] = from[first + w];
      }
    }
  }
  /// Calls action(place) for each element whose bit is not set.
  template <class Action>
  __device__ __forceinline__ void for_each_missing(const MaskBits& bits, int tile, int own_column,
                                                   const Action& action) const {
    if (of_32_rows && bits.of_32_rows) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned here = words_[i][0] >> tile * words_of_tile % 32;
#pragma unroll
        for (int w = 0; w < words_of_tile; ++w) {
          const bool missing = (here >> w & 1) == 0;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (missing) action(4 * (4 * w + j) + 2 * i + e);
            }
          }
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int w = 0; w < words_of_tile; ++w) {
        const unsigned word = words_[i][w] >> own_column;
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

 private:
  static constexpr int words_of_tile = columns / 32;
  unsigned words_[2][words_of_tile];
};

/// Loads the bits of a tile and applies them.
template <int columns, bool of_32_rows, class Action>
__device__ __forceinline__ void for_each_missing_bit(const MaskBits& bits, std::int64_t first_word,
                                                     int own_row, int own_rows, int tile, int own_column,
                                                     const Action& action) {
  TileBits<columns, of_32_rows> of;
  of.load(bits, first_word, own_row, own_rows, tile);
  of.for_each_missing(bits, tile, own_column, action);
}

}  // namespace annulus::attention::hopper
