#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <cstddef>
#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"

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

/// Mask and keys of a block of threads: those that all heads have.
template <bool of_heads>
class HeadMask {
 public:
  using Keys = PositionMap;
  template <class T>
  __device__ void turn_to(const gpu::Input<T>&, int, int) {}
  template <class T>
  __device__ const MaskRule& rule(const gpu::Input<T>& in) const {
    return in.mask;
  }
  template <class T>
  __device__ const Keys& keys(const gpu::Input<T>& in) const {
    return in.kv_positions;
  }
};

/// Mask and keys of one head, where heads have block lists or listed keys of their own. In shared memory: the
/// products need the registers.
template <>
class HeadMask<true> {
 public:
  using Keys = KeyPositions;
  /// All threads of a block call this together. Heads of one kv head have the same keys.
  template <class T>
  __device__ void turn_to(const gpu::Input<T>& in, int batch, int head) {
    __syncthreads();  // the head before has been used
    if (threadIdx.x == 0) {
      *reinterpret_cast<MaskRule*>(rule_) = in.mask.of_head(std::int64_t{batch} * in.heads + head);
      const std::int64_t count = in.kv_positions.count,
                         kv_head = std::int64_t{batch} * in.kv_heads + head / (in.heads / in.kv_heads);
      Keys keys{in.kv_positions, nullptr};
      if (in.kv_listed != nullptr) {
        keys = Keys::of_list(in.kv_listed + kv_head * count, count);
        keys.map.count = keys.rows_below(in.mask.tokens);  // those behind are no keys
      }
      *reinterpret_cast<Keys*>(keys_) = keys;
    }
    __syncthreads();
  }
  template <class T>
  __device__ const MaskRule& rule(const gpu::Input<T>&) const {
    return *reinterpret_cast<const MaskRule*>(rule_);
  }
  template <class T>
  __device__ const Keys& keys(const gpu::Input<T>&) const {
    return *reinterpret_cast<const Keys*>(keys_);
  }

 private:
  // Shared memory takes no objects with values that members start with.
  alignas(MaskRule) unsigned char rule_[sizeof(MaskRule)];
  alignas(Keys) unsigned char keys_[sizeof(Keys)];
};

__device__ __forceinline__ int count_of(const PositionMap& rows) {
  return static_cast<int>(rows.count);
}
__device__ __forceinline__ int count_of(const KeyPositions& keys) {
  return static_cast<int>(keys.count());
}

/// The tiles of the other side that the mask does not leave empty for the own rows of a block. Tiles are
/// classified a chunk at a time, one by each thread, because classification costs divisions in 64 bits. A
/// partly masked tile becomes a word of bits for each own row. All threads of a block call the functions
/// together. `of_heads`: as HeadMask, from which rule and keys are.
template <Owner owner, int own_rows, int threads, bool of_heads>
class TileWalk {
  static_assert(own_rows <= threads && own_rows % 32 == 0);
  using Keys = typename HeadMask<of_heads>::Keys;
  using Own = std::conditional_t<owner == Owner::keys, Keys, PositionMap>;
  using Inner = std::conditional_t<owner == Owner::keys, PositionMap, Keys>;

 public:
  /// The own rows are [first, first + rows) of `own`.
  __device__ TileWalk(const MaskRule& rule, const Own& own, int first, int rows, const Inner& inner,
                      WalkMemory<own_rows>& memory)
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

  /// `rule` has become that of another head, whose blocks alone are others.
  __device__ void start_again() { chunk_ = -1; }

  /// The next tile at or behind row `first` (a multiple of inner_rows).
  __device__ WalkTile next(int first) {
    for (; first < end_; first += inner_rows) {
      const int tile = first / inner_rows;
      if (tile / memory_.chunk != chunk_) classify(tile / memory_.chunk);
      if (of_heads && tile % 8 == 0 && none_of_eight(tile % memory_.chunk)) {
        first += 7 * inner_rows;
        continue;
      }
      const auto coverage = static_cast<Coverage>(memory_.coverage[tile % memory_.chunk]);
      if (coverage == Coverage::empty) continue;
      const int rows = min(inner_rows, count_of(inner_) - first);
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
      if (rule_.dilation > 1 || (!of_heads && rule_.has_blocks())) {
        word &= sparse(rule_, inner_, position_, tile.first, low, high);
      }
    }
    if constexpr (of_heads) {
      if (rule_.has_blocks()) word &= blocks(rule_, inner_, position_, tile.first, tile.rows, word != 0);
    }
    memory_.allowed[stage][row] = word;
  }

 private:
  /// Whether eight tiles of the chunk are empty. Lists leave out so many that one by one takes long.
  __device__ __forceinline__ bool none_of_eight(int tile) const {
    static_assert(static_cast<int>(Coverage::empty) == 0 &&
                  offsetof(WalkMemory<own_rows>, coverage) % 8 == 0);
    return *reinterpret_cast<const std::uint64_t*>(memory_.coverage + tile) == 0;
  }

  /// The row of the other side where the reach of a position begins or ends, before dilation and blocks.
  __device__ int row_limit(std::int64_t position, bool end) const {
    const KeyRange reach = owner == Owner::queries ? rule_.key_range(position, rule_.left, rule_.right)
                                                   : rule_.key_range(position, rule_.right, rule_.left);
    return static_cast<int>(inner_.rows_below(end ? reach.end : reach.begin));
  }

  __device__ void classify(int chunk) {
    __syncthreads();  // the last chunk has been used
    const Own own = own_.slice({first_, first_ + rows_});
    for (int i = static_cast<int>(threadIdx.x); i < memory_.chunk; i += threads) {
      const std::int64_t first = (static_cast<std::int64_t>(chunk) * memory_.chunk + i) * inner_rows;
      if (first >= end_) break;
      const Inner inner = inner_.slice({first, min(first + inner_rows, std::int64_t{count_of(inner_)})});
      Coverage coverage;
      if constexpr (owner == Owner::queries) {
        coverage = coverage_of(own, inner);
      } else {
        coverage = coverage_of(inner, own);
      }
      memory_.coverage[i] = static_cast<std::uint8_t>(coverage);
    }
    chunk_ = chunk;
    __syncthreads();
  }

  __device__ __forceinline__ Coverage coverage_of(const PositionMap& q, const Keys& k) const {
    // Lists leave out most tiles, and say so for less than the band does.
    if (of_heads && rule_.block_row_starts != nullptr && rule_.classify_blocks(q, k) == Coverage::empty)
      return Coverage::empty;
    return rule_.classify(q, k);
  }

  /// Dilation and blocks, element by element. No part of its caller, whose registers the products need.
  __device__ static __noinline__ std::uint64_t sparse(const MaskRule& rule, const Inner& inner,
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

  /// Blocks, by the lanes of a warp together: what queries of one block row have is looked up once, each key
  /// by another lane. `reaches`: whether the lane's row sees any row of the tile before blocks are applied.
  __device__ static __noinline__ std::uint64_t blocks(const MaskRule& rule, const Inner& inner,
                                                      std::int64_t position, int first, int rows,
                                                      bool reaches) {
    constexpr unsigned warp = 0xffffffffu;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool exists[2] = {lane < rows, lane + 32 < rows};
    const std::int64_t others[2] = {exists[0] ? inner(first + lane) : 0,
                                    exists[1] ? inner(first + lane + 32) : 0};
    // Queries with the same number have the same blocks.
    const auto blocks_of = [&](std::int64_t query) {
      return rule.query_blocks != nullptr ? query : query / rule.block_size;
    };
    const auto both = [&](bool low, bool high) {
      return std::uint64_t{__ballot_sync(warp, high)} << 32 | __ballot_sync(warp, low);
    };
    std::uint64_t word = 0;
    if constexpr (owner == Owner::queries) {
      const std::int64_t own = blocks_of(position);
      for (unsigned rest = __ballot_sync(warp, reaches); rest != 0;) {
        const std::int64_t query = __shfl_sync(warp, position, __ffs(static_cast<int>(rest)) - 1);
        const unsigned alike = __ballot_sync(warp, own == blocks_of(query)) & rest;
        const std::uint64_t allowed = both(exists[0] && rule.block_allows(query, others[0]),
                                           exists[1] && rule.block_allows(query, others[1]));
        if ((alike >> lane & 1) != 0) word = allowed;
        rest &= ~alike;
      }
    } else {
      const std::int64_t of_others[2] = {blocks_of(others[0]), blocks_of(others[1])};
      for (std::uint64_t rest = both(exists[0], exists[1]); rest != 0;) {
        const int leader = __ffsll(static_cast<long long>(rest)) - 1;
        const std::int64_t query = __shfl_sync(warp, leader < 32 ? others[0] : others[1], leader % 32),
                           of_query = blocks_of(query);
        const std::uint64_t alike = both(of_others[0] == of_query, of_others[1] == of_query) & rest;
        if (reaches && rule.block_allows(query, position)) word |= alike;
        rest &= ~alike;
      }
    }
    return word;
  }

  const MaskRule& rule_;
  const Own& own_;
  const Inner& inner_;
  WalkMemory<own_rows>& memory_;
  std::int64_t position_ = 0;
  int first_, rows_;
  int low_ = 0, high_ = 0, begin_, end_, chunk_ = -1;
};

}  // namespace annulus::attention::mma
