#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>

namespace annulus::attention::mma {

/// Which side a block owns; it walks over the other.
enum class Owner { queries, keys };

/// Rows of the walked side in a tile: one bit each in a 64-bit word.
inline constexpr int inner_rows = 64;

/// What a block needs in shared memory to walk over tiles.
template <int own_rows>
struct WalkMemory {
  static constexpr int chunk = 512;
  std::uint64_t allowed[2]
                       [own_rows];  ///< of the tile in each stage: bit j of word i lets own row i see row j
  std::uint8_t coverage[chunk];     ///< of the tiles of a chunk
};

/// A tile of the walked side.
struct WalkTile {
  int first;  ///< row, or the end of the walk
  int rows;
  bool partial;
};

/// The tiles of the other side that the mask does not leave empty for the own rows of a block. Tiles are
/// classified a chunk at a time, one by each thread, because classification costs divisions in 64 bits. A
/// partly masked tile becomes a word of bits for each own row. All threads of a block call the functions
/// together.
template <Owner owner, int own_rows, int threads>
class TileWalk {
  static_assert(own_rows <= threads);

 public:
  /// The own rows are [first, first + rows) of `own`.
  __device__ TileWalk(const MaskRule& rule, const PositionMap& own, int first, int rows,
                      const PositionMap& inner, WalkMemory<own_rows>& memory)
      : rule_(rule), own_(own), inner_(inner), memory_(memory), first_(first), rows_(rows) {
    begin_ = row_limit(own(first), false) / inner_rows * inner_rows;
    end_ = row_limit(own(first + rows - 1), true);
    const int row = static_cast<int>(threadIdx.x);
    if (row < rows) {
      position_ = own(first + row);
      low_ = row_limit(position_, false);
      high_ = row_limit(position_, true);
    }
  }

  __device__ int begin() const { return begin_; }

  /// The next tile at or behind row `first` (a multiple of inner_rows).
  __device__ WalkTile next(int first) {
    for (; first < end_; first += inner_rows) {
      const int tile = first / inner_rows;
      if (tile / memory_.chunk != chunk_) classify(tile / memory_.chunk);
      const auto coverage = static_cast<Coverage>(memory_.coverage[tile % memory_.chunk]);
      if (coverage == Coverage::empty) continue;
      const int rows = min(inner_rows, static_cast<int>(inner_.count) - first);
      return {first, rows, coverage == Coverage::partial || rows < inner_rows};
    }
    return {end_, 0, false};
  }

  /// Writes the words of a partial tile for `stage`; the caller's barrier makes them visible.
  __device__ void write_words(const WalkTile& tile, int stage) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= own_rows) return;
    const int low = max(low_ - tile.first, 0), high = min(high_ - tile.first, inner_rows);
    std::uint64_t word = 0;
    if (low < high) {
      word = (~std::uint64_t{0} >> (inner_rows - (high - low))) << low;
      if (rule_.dilation > 1 || rule_.has_blocks()) {
        word &= sparse(rule_, inner_, position_, tile.first, low, high);
      }
    }
    memory_.allowed[stage][row] = word;
  }

 private:
  /// The row of the other side where the reach of a position begins or ends, before dilation and blocks.
  __device__ int row_limit(std::int64_t position, bool end) const {
    const KeyRange reach = owner == Owner::queries ? rule_.key_range(position, rule_.left, rule_.right)
                                                   : rule_.key_range(position, rule_.right, rule_.left);
    return static_cast<int>(inner_.rows_below(end ? reach.end : reach.begin));
  }

  __device__ void classify(int chunk) {
    __syncthreads();  // the last chunk has been used
    const PositionMap own = own_.slice({first_, first_ + rows_});
    for (int i = static_cast<int>(threadIdx.x); i < memory_.chunk; i += threads) {
      const std::int64_t first = (static_cast<std::int64_t>(chunk) * memory_.chunk + i) * inner_rows;
      if (first >= end_) break;
      const PositionMap inner = inner_.slice({first, min(first + inner_rows, std::int64_t{inner_.count})});
      const Coverage coverage =
          owner == Owner::queries ? rule_.classify(own, inner) : rule_.classify(inner, own);
      memory_.coverage[i] = static_cast<std::uint8_t>(coverage);
    }
    chunk_ = chunk;
    __syncthreads();
  }

  /// Dilation and blocks, element by element. No part of its caller, whose registers the products need.
  __device__ static __noinline__ std::uint64_t sparse(const MaskRule& rule, const PositionMap& inner,
                                                      std::int64_t position, int first, int low, int high) {
    std::uint64_t word = 0;
    for (int j = low; j < high; ++j) {
      const std::int64_t other = inner(first + j);
      const std::int64_t q = owner == Owner::queries ? position : other;
      const std::int64_t k = owner == Owner::queries ? other : position;
      const bool allowed = (rule.dilation == 1 || (q - k) % rule.dilation == 0) && rule.block_allows(q, k);
      word |= std::uint64_t{allowed} << j;
    }
    return word;
  }

  const MaskRule& rule_;
  const PositionMap &own_, &inner_;
  WalkMemory<own_rows>& memory_;
  std::int64_t position_ = 0;
  int first_, rows_;
  int low_ = 0, high_ = 0, begin_, end_, chunk_ = -1;
};

}  // namespace annulus::attention::mma
