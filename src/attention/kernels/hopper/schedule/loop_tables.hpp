#pragma once

#include <annulus/base/device_code.hpp>
#include <cstdint>

/// What a mask leaves of the other side for the rows and tiles of one side, as numbers in device memory.
/// Kernels know neither positions nor masks: whoever fills these tables decides. Forward: queries own, keys
/// are visited. Backward: keys own, queries are visited.
namespace annulus::attention::hopper {

/// Rows [begin, end) of the other side that a row attends to or is attended by.
struct RowSpan {
  int begin, end;
};

/// A bit for each row of the other side, or for 32 of them: what blocks allow within the spans. A row of bits
/// serves all own rows of one block, or one listed key, or one query that has blocks of its own.
struct MaskBits {
  const unsigned* words = nullptr;  ///< (lists, rows of bits, words_of_row); null: spans say all
  const int* rows = nullptr;        ///< of each own row; null: each has its own
  std::int64_t words_of_row = 0;
  std::int64_t words_of_list = 0;  ///< 0: one list for all heads
  bool of_32_rows = false;         ///< a bit stands for rows 32i … 32i + 31

  /// What an own row has.
  ANNULUS_FUNCTION const unsigned* of_own_row(int row) const {
    return words + (rows == nullptr ? row : rows[row]) * words_of_row;
  }
  /// What 32 rows of the other side have, the w-th 32 from those of the `first`-th on. `row`: of bits.
  ANNULUS_FUNCTION unsigned of_rows(const unsigned* row, std::int64_t first, int w) const {
    return of_32_rows ? 0u - (row[(first + w) / 32] >> (first + w) % 32 & 1u) : row[first + w];
  }
};

/// Tiles [begin, end) of the other side, visited from the last to the first.
struct alignas(16) TileRun {
  int begin, end;
  int how;   ///< what follows, packed by TileRun::pack
  int next;  ///< backward: the own tile that adds to the gradients of these visited rows behind this one

  /// spans, bits: these have to be applied to elements; with neither, every row sees all of them. first: the
  /// gradients of visited rows hold nothing yet and are written instead of added to.
  ANNULUS_FUNCTION static constexpr int pack(bool spans, bool bits, bool first) {
    return (spans || bits ? 1 : 0) + (first ? 2 : 0) + (bits ? 4 : 0);
  }
  ANNULUS_FUNCTION static constexpr bool partial(int how) { return (how & 1) != 0; }
  ANNULUS_FUNCTION static constexpr bool first(int how) { return (how & 2) != 0; }
  ANNULUS_FUNCTION static constexpr bool bits(int how) { return (how & 4) != 0; }
};

/// What an own tile visits.
struct alignas(16) TileLoop {
  int first_run, runs;  ///< in TileTables::runs; no run is empty
  int tiles;            ///< of all runs
  int unused;
};

/// One table for each dilation class (dilation_classes.hpp), one behind the other; or, where heads have
/// block lists of their own, one for each list.
struct TileTables {
  const RowSpan* spans = nullptr;   ///< (classes, own rows of the largest class), or of each table
  std::int64_t spans_of_table = 0;  ///< 0: all tables of a class share them. Listed keys: own rows
  MaskBits bits;
  const TileRun* runs = nullptr;
  const TileLoop* loops = nullptr;  ///< (tables, own tiles of the largest class)
  /// Backward: of each visited tile of each table, the first own tile that visits it, or −1.
  const int* first_writers = nullptr;
  int tables = 1;
  int heads_of_list = 1;  ///< consecutive heads that share a table; 1 where all heads do

  /// Table of a number that runs over batch × heads of queries × classes.
  ANNULUS_FUNCTION int table_of(int head_and_class) const { return head_and_class / heads_of_list % tables; }
  /// Table of a head of a group of heads, whose first one has table `first`.
  ANNULUS_FUNCTION int table_in_group(int first, int head_in_group, int group) const {
    return first + (heads_of_list >= group ? 0 : head_in_group / heads_of_list);
  }
};

}  // namespace annulus::attention::hopper
