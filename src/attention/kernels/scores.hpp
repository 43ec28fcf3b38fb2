#pragma once

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

namespace annulus::attention {

/// Queries at consecutive positions, and keys of any layout.
template <class T, class Exec>
struct ScoreOperands {
  Array4<const T, Exec> q;       ///< (batch, heads, queries, head_dim)
  std::int64_t first_query = 0;  ///< position of the first one
  Array4<const T, Exec> k;       ///< (batch, kv_heads, keys, head_dim); kv_heads divides heads
  PositionMap k_positions;       ///< of the keys
  float scale = 1.0f;
};

/// scores (batch · heads, keys, queries) = scale · k · qᵀ in fp32, −∞ for keys behind the query. Raises
/// maxima (batch · heads · queries) to the largest score of each query. All scores are summed in the same
/// order wherever their rows lie, unlike a matrix library's products, so that a pair's has the same bits on
/// any number of ranks. On the tensor cores of NVIDIA GPUs from compute capability 8.0 on for 16-bit types,
/// head_dim 64 to 128 in multiples of 8 and rows that start at multiples of 16 bytes, elsewhere by a portable
/// kernel. Throws Error where shapes do not fit.
template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima);

}  // namespace annulus::attention
