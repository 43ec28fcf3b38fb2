#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <cstddef>
#include <cstdint>

#include "attention/kernels/portable/tuning.hpp"

namespace annulus::attention::portable {

/// What a query row may attend to, and where it stands.
struct RowKeys {
  std::int64_t position, begin, end;
};

/// A team's tiles. The same for all three kernels; each uses what it needs.
struct Scratch {
  float* own[2];       ///< (width, own) transposed operands, or (own, width) the running output
  float* inner[2];     ///< (inner, width)
  float* scores[2];    ///< (inner, own)
  float* row[3];       ///< per query row: (own) or (inner)
  RowKeys* queries;    ///< per query row
  std::int64_t* keys;  ///< positions of the keys

  /// Bytes at level `level` (with room for alignment).
  KOKKOS_FUNCTION static constexpr std::size_t bytes(const Tiles& tiles, int level) {
    std::size_t sum = 0;
    if (level == tiles.level) sum += 2 * own_bytes(tiles) + 2 * scores_bytes(tiles) + rows_bytes(tiles);
    if (level == tiles.inner_level) sum += 2 * inner_bytes(tiles);
    return sum == 0 ? 0 : sum + alignment;
  }

  template <class Member>
  KOKKOS_FUNCTION Scratch(const Member& member, const Tiles& tiles) {
    char* here = take(member, tiles, tiles.level);
    char* inner_here = tiles.inner_level == tiles.level ? nullptr : take(member, tiles, tiles.inner_level);
    for (int i = 0; i < 2; ++i) own[i] = advance<float>(here, own_bytes(tiles));
    for (int i = 0; i < 2; ++i) scores[i] = advance<float>(here, scores_bytes(tiles));
    const int rows = longer(tiles);
    queries = advance<RowKeys>(here, rows * sizeof(RowKeys));
    keys = advance<std::int64_t>(here, rows * sizeof(std::int64_t));
    for (int i = 0; i < 3; ++i) row[i] = advance<float>(here, rows * sizeof(float));
    char*& rest = inner_here == nullptr ? here : inner_here;
    for (int i = 0; i < 2; ++i) inner[i] = advance<float>(rest, inner_bytes(tiles));
  }

 private:
  static constexpr std::size_t alignment = 64;  // a cache line, a vector register

  // Tile sides are multiples of 16, so that every piece is a multiple of the alignment.
  KOKKOS_FUNCTION static constexpr int longer(const Tiles& tiles) {
    return tiles.own > tiles.inner ? tiles.own : tiles.inner;
  }
  KOKKOS_FUNCTION static constexpr std::size_t own_bytes(const Tiles& tiles) {
    return sizeof(float) * tiles.own * tiles.width;
  }
  KOKKOS_FUNCTION static constexpr std::size_t inner_bytes(const Tiles& tiles) {
    return sizeof(float) * tiles.inner * tiles.width;
  }
  KOKKOS_FUNCTION static constexpr std::size_t scores_bytes(const Tiles& tiles) {
    return sizeof(float) * tiles.own * tiles.inner;
  }
  KOKKOS_FUNCTION static constexpr std::size_t rows_bytes(const Tiles& tiles) {
    return (sizeof(RowKeys) + sizeof(std::int64_t) + 3 * sizeof(float)) * longer(tiles);
  }

  template <class Member>
  KOKKOS_FUNCTION static char* take(const Member& member, const Tiles& tiles, int level) {
    const auto size = static_cast<std::ptrdiff_t>(bytes(tiles, level) - alignment);
    return static_cast<char*>(member.team_scratch(level).get_shmem_aligned(size, alignment));
  }
  template <class T>
  KOKKOS_FUNCTION static T* advance(char*& here, std::size_t size) {
    T* const piece = reinterpret_cast<T*>(here);
    here += size;
    return piece;
  }
};

}  // namespace annulus::attention::portable
