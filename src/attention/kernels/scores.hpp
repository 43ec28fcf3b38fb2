#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

#include "attention/kernels/key_tiles.hpp"

namespace annulus::attention {

/// Queries at consecutive or listed positions, and keys of any layout.
template <class T, class Exec>
struct ScoreOperands {
  Strided4<const T, Exec> q;     ///< (batch, heads, queries, head_dim)
  std::int64_t first_query = 0;  ///< position of the first one
  Array4<const T, Exec> k;       ///< (batch, kv_heads, keys, head_dim); kv_heads divides heads
  PositionMap k_positions;       ///< of the keys
  float scale = 1.0f;
  /// Positions of the queries, in memory of Exec, in the place of `first_query` and those behind it; −1: a
  /// query before all keys.
  const std::int64_t* q_listed = nullptr;
  /// Beside `q_listed`: the first position that each query sees, (batch, queries); null: any.
  const std::int64_t* q_first = nullptr;
  /// Queries fall into so many groups of one size, one behind the other, and keys see the queries of one
  /// group: `tiles` says which, where there are several. No tiles: all keys, of one group.
  std::int64_t groups = 1;
  KeyTiles tiles = {};

  std::int64_t queries_of_group() const { return static_cast<std::int64_t>(q.extent(2)) / groups; }
  KeyTiles all_tiles() const { return tiles.count > 0 ? tiles : KeyTiles::of(k_positions.count); }

  KOKKOS_FUNCTION std::int64_t q_position(std::int64_t query) const {
    return q_listed == nullptr ? first_query + query : q_listed[query];
  }
  KOKKOS_FUNCTION bool sees(std::int64_t sequence, std::int64_t query, std::int64_t position) const {
    return position <= q_position(query) &&
           (q_first == nullptr ||
            q_first[sequence * static_cast<std::int64_t>(q.extent(2)) + query] <= position);
  }
};

/// scores (batch · heads, keys, queries of a group) = scale · k · qᵀ in fp32, −∞ for keys that the query does
/// not see; keys in no tile have none. Raises maxima (batch · heads · queries) to the largest score of each
/// query. All scores are summed in the same order wherever their rows lie, unlike a matrix library's
/// products, so that a pair's has the same bits on any number of ranks. On the tensor cores of NVIDIA GPUs
/// from compute capability 8.0 on for 16-bit types, head_dim 64 to 128 or more than 256, in multiples of 8,
/// and rows that start at multiples of 16 bytes, elsewhere by a portable kernel. Listed positions of a group
/// increase, as do the first ones that they see. Throws Error where shapes do not fit.
template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima);

}  // namespace annulus::attention
