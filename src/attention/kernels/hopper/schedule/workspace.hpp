#pragma once

#include <annulus/base/division.hpp>
#include <cstddef>

#include "attention/kernels/hopper/schedule/block_bits.hpp"
#include "attention/kernels/hopper/schedule/loop_tables.hpp"

namespace annulus::attention::hopper {

/// Cuts a workspace into arrays that start at multiples of 256 bytes. Without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class E>
  E* take(std::int64_t count) {
    std::byte* const here = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += round_up(static_cast<std::size_t>(count) * sizeof(E), 256);
    return reinterpret_cast<E*>(here);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

/// How large the tables of a tile loop are. Rows are those of the largest dilation class.
struct TileTablesSize {
  int classes = 1;
  std::int64_t own_rows = 0, own_tiles = 0, other_tiles = 0;
  BitsSize bits;                ///< of a block list; 0 rows without one
  std::int64_t block_rows = 0;  ///< of a block list; 0 without one
  std::int64_t block_lists = 1;
  std::int64_t heads_of_list = 0;  ///< 0: one list, or none, for all heads; else there is one class
  bool listed_keys = false;        ///< then spans are of tables, too
  bool bits_of_own_rows = false;   ///< each own row has bits of its own: a listed key, or a query with blocks
  bool needs_coverage = false;     ///< loops are made of TableMemory::coverage
  /// Batch × heads where sums of visited rows keep an order, else 0.
  std::int64_t heads_with_semaphores = 0;

  ANNULUS_FUNCTION bool lists() const { return bits.rows > 0; }
  ANNULUS_FUNCTION std::int64_t tables() const { return classes * block_lists; }
  ANNULUS_FUNCTION std::int64_t spans() const { return (listed_keys ? tables() : classes) * own_rows; }
  ANNULUS_FUNCTION std::int64_t spans_of_table() const { return listed_keys ? own_rows : 0; }
  /// Boundaries of the blocks of a sequence: where blocks begin, and where the last one ends.
  ANNULUS_FUNCTION std::int64_t boundaries() const { return block_rows > 0 ? block_rows + 1 : 0; }
  /// The same for keys; where keys are listed, for each list.
  ANNULUS_FUNCTION std::int64_t key_boundaries() const {
    return boundaries() * (listed_keys ? block_lists : 1);
  }
  ANNULUS_FUNCTION std::int64_t words_of_list() const { return bits.rows * bits.words_of_row; }
  /// Spans make a few runs of a tile: partial, whole, partial, cut where the first visits begin. Of block
  /// lists each visited tile is a run.
  ANNULUS_FUNCTION std::int64_t runs_of_tile() const { return lists() ? other_tiles : 4; }
};

/// The tables of one loop and the counters behind it.
struct TableMemory {
  RowSpan* spans;
  TileRun* runs;
  TileLoop* loops;
  int *first_writers, *tile_counter, *dq_semaphores, *bit_rows;
  int *queries_below, *keys_below;  ///< rows of queries, and of keys, before each boundary of blocks
  unsigned* bits;
  std::uint8_t* coverage;  ///< (lists, own tiles, other tiles)
  std::size_t bytes;

  TableMemory(void* memory, const TileTablesSize& size) {
    Carver carver(memory);
    const std::int64_t own_tiles = size.tables() * size.own_tiles;
    spans = carver.take<RowSpan>(size.spans());
    runs = carver.take<TileRun>(own_tiles * size.runs_of_tile());
    loops = carver.take<TileLoop>(own_tiles);
    first_writers = carver.take<int>(size.tables() * size.other_tiles);
    tile_counter = carver.take<int>(1);
    dq_semaphores = size.heads_with_semaphores > 0
                        ? carver.take<int>(size.heads_with_semaphores * size.classes * size.other_tiles)
                        : nullptr;
    bit_rows = size.lists() ? carver.take<int>(size.own_rows) : nullptr;
    queries_below = carver.take<int>(size.boundaries());
    keys_below = carver.take<int>(size.key_boundaries());
    bits = size.lists() ? carver.take<unsigned>(size.block_lists * size.words_of_list()) : nullptr;
    coverage = size.needs_coverage ? carver.take<std::uint8_t>(own_tiles * size.other_tiles) : nullptr;
    bytes = carver.bytes();
  }
  TileTables tables(const TileTablesSize& size) const {
    const std::int64_t words_of_list = size.heads_of_list > 0 ? size.words_of_list() : 0;
    return {spans,
            size.spans_of_table(),
            {bits, size.bits_of_own_rows ? nullptr : bit_rows, size.bits.words_of_row, words_of_list,
             size.bits.of_32_rows},
            runs,
            loops,
            first_writers,
            static_cast<int>(size.tables()),
            static_cast<int>(size.heads_of_list > 0 ? size.heads_of_list : 1)};
  }
};

}  // namespace annulus::attention::hopper
