#pragma once

#include <cstdint>

#include <annulus/base/division.hpp>

namespace annulus {

/// Half-open range of row indices of a shard.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  ANNULUS_FUNCTION constexpr std::int64_t size() const { return end - begin; }
  ANNULUS_FUNCTION constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(const RowRange&, const RowRange&) = default;
};

/// Rows row, row + 1, … at positions position, position + 1, …
struct RowRun {
  std::int64_t row = 0, position = 0;
  friend constexpr bool operator==(const RowRun&, const RowRun&) = default;
};

/// The global positions of the rows of a shard, strictly increasing:
///
///     pos(i) = base + ((i + first) / block) · hi + ((i + first) mod block) · lo,   0 ≤ i < count.
///
/// One form serves every fixed layout: contiguous (one block), zigzag (two blocks, hi the distance of the two
/// chunks), striped (block 1, hi = ranks) and block-striped (block b, hi = b · ranks, lo = 1). A balanced
/// layout has a list of runs in its place, of any lengths. A slice of a shard is a position map again,
/// because `first` shifts the index. Kernels, masks, plans and loaders know no other notion of "where a row
/// stands in the sequence".
struct PositionMap {
  std::int64_t base = 0;   ///< position of index 0 (before `first` is applied)
  std::int64_t hi = 0;     ///< distance of consecutive blocks
  std::int64_t lo = 1;     ///< distance of consecutive rows inside a block
  std::int64_t block = 1;  ///< rows of a block, at least 1
  std::int64_t first = 0;  ///< index at which this (slice of a) shard starts
  std::int64_t count = 0;  ///< rows
  /// `run_count` runs, increasing in rows and positions, and behind them one that begins at the shard's end,
  /// which no row belongs to. Borrowed. Null: the form above.
  const RowRun* runs = nullptr;
  /// A copy of `runs` in memory of a device, for kernels there (attention::RunsOn).
  const RowRun* device_runs = nullptr;
  std::int64_t run_count = 0;

  /// Global position of row i.
  ANNULUS_FUNCTION constexpr std::int64_t operator()(std::int64_t i) const {
    const std::int64_t j = i + first;
    if (runs != nullptr) {
      const RowRun& run = readable()[run_of(j)];
      return run.position + (j - run.row);
    }
    return base + (j / block) * hi + (j % block) * lo;
  }

  ANNULUS_FUNCTION constexpr bool empty() const { return count <= 0; }
  ANNULUS_FUNCTION constexpr std::int64_t front() const { return (*this)(0); }
  ANNULUS_FUNCTION constexpr std::int64_t back() const { return (*this)(count - 1); }

  /// Rows [rows.begin, rows.end) as a position map of their own.
  ANNULUS_FUNCTION constexpr PositionMap slice(RowRange rows) const {
    PositionMap part = *this;
    part.first += rows.begin;
    part.count = rows.size();
    return part;
  }

  /// Number of rows whose position is below `position` (so also the index of the first row at or above it).
  ANNULUS_FUNCTION constexpr std::int64_t rows_below(std::int64_t position) const {
    if (count <= 0 || position <= front()) return 0;
    if (position > back()) return count;
    if (runs != nullptr) return rows_of_runs_below(position) - first;
    // Blocks are disjoint and increasing, so the block that `position` falls in (or behind) is found by
    // division.
    const std::int64_t offset = position - base;
    std::int64_t b = hi > 0 ? offset / hi : 0;
    const std::int64_t last_block = (first + count - 1) / block;
    if (b > last_block) b = last_block;
    const std::int64_t inside = offset - b * hi;
    std::int64_t in_block = inside <= 0 ? 0 : ceil_divide(inside, lo);
    if (in_block > block) in_block = block;
    const std::int64_t rows = b * block + in_block - first;
    return rows < 0 ? 0 : (rows > count ? count : rows);
  }

  /// The rows from row i up to this one stand side by side.
  ANNULUS_FUNCTION constexpr std::int64_t end_of_run(std::int64_t i) const {
    const std::int64_t j = i + first;
    std::int64_t end = first + count;
    if (runs != nullptr) {
      end = readable()[run_of(j) + 1].row;
    } else if (hi != block * lo || lo != 1) {
      end = lo == 1 ? (j / block + 1) * block : j + 1;
    }
    return end < first + count ? end - first : count;
  }

  /// Writes the positions of all rows to `to`, which ends where the result says. For host code alone.
  template <class Integer>
  constexpr Integer* list(Integer* to) const {
    for (std::int64_t i = 0, end; i < count; i = end) {
      end = end_of_run(i);
      for (std::int64_t j = 0, first_of_run = (*this)(i); j < end - i; ++j)
        *to++ = static_cast<Integer>(first_of_run + j);
    }
    return to;
  }

  /// Whether both have the same rows: equal fields, or, where one has runs, equal positions, which host code
  /// alone compares.
  friend constexpr bool operator==(const PositionMap& a, const PositionMap& b) {
    if (a.count != b.count) return false;
    if (a.runs == nullptr && b.runs == nullptr)
      return a.base == b.base && a.hi == b.hi && a.lo == b.lo && a.block == b.block && a.first == b.first;
    for (std::int64_t i = 0; i < a.count;) {
      if (a(i) != b(i)) return false;
      const std::int64_t a_end = a.end_of_run(i), b_end = b.end_of_run(i);
      i = a_end < b_end ? a_end : b_end;
    }
    return true;
  }

 private:
  /// The runs for whoever asks, host or device.
  ANNULUS_FUNCTION constexpr const RowRun* readable() const {
#ifdef ANNULUS_DEVICE_PASS
    return device_runs;
#else
    return runs;
#endif
  }

  /// The run of index `index`.
  ANNULUS_FUNCTION constexpr std::int64_t run_of(std::int64_t index) const {
    const RowRun* const list = readable();
    std::int64_t low = 0, high = run_count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (list[middle].row <= index ? low : high) = middle;
    }
    return low;
  }

  /// Rows of all runs below `position`, which is behind the first row.
  ANNULUS_FUNCTION constexpr std::int64_t rows_of_runs_below(std::int64_t position) const {
    const RowRun* const list = readable();
    std::int64_t low = 0, high = run_count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (list[middle].position < position ? low : high) = middle;
    }
    const std::int64_t rows = list[low].row + (position - list[low].position);
    return rows < list[low + 1].row ? rows : list[low + 1].row;
  }
};

/// Where the keys of a block stand: where a position map says, or, with `listed`, at positions of their own
/// (the columns that a head chose, gathered from all ranks). Has what masks ask of a PositionMap.
struct KeyPositions {
  PositionMap map;
  /// map.count increasing positions, borrowed; those from the end of the sequence on are no keys. Null: those
  /// of `map`.
  const std::int64_t* listed = nullptr;

  /// Global position of row i.
  ANNULUS_FUNCTION constexpr std::int64_t operator()(std::int64_t i) const {
    return listed == nullptr ? map(i) : listed[map.first + i];
  }
  ANNULUS_FUNCTION constexpr std::int64_t count() const { return map.count; }
  ANNULUS_FUNCTION constexpr bool empty() const { return map.empty(); }
  ANNULUS_FUNCTION constexpr std::int64_t front() const { return (*this)(0); }
  ANNULUS_FUNCTION constexpr std::int64_t back() const { return (*this)(map.count - 1); }

  /// Rows [rows.begin, rows.end) as positions of their own.
  ANNULUS_FUNCTION constexpr KeyPositions slice(RowRange rows) const { return {map.slice(rows), listed}; }

  /// Number of rows whose position is below `position`.
  ANNULUS_FUNCTION constexpr std::int64_t rows_below(std::int64_t position) const {
    if (listed == nullptr) return map.rows_below(position);
    std::int64_t low = 0, high = map.count;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (listed[map.first + middle] < position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /// `count` listed positions.
  ANNULUS_FUNCTION static constexpr KeyPositions of_list(const std::int64_t* positions, std::int64_t count) {
    return {PositionMap{.count = count}, positions};
  }
};

}  // namespace annulus
