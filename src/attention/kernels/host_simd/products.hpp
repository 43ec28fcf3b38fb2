#pragma once

#include "attention/kernels/host_simd/tile.hpp"

/// The two matrix products that the host kernels are made of, on packed tiles.
namespace annulus::attention::host_simd {

struct TileProductSize {
  int rows;     ///< of the product, a multiple of block_rows
  int vectors;  ///< whole vectors that its lanes (columns) make, 1 to block_vectors
  int depth;    ///< terms of each sum
};

/// out(r, lane) = Σ_k a(r, k) · b(k, lane).
void multiply(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b, StridedTile out);

/// out(r, lane) = factor(lane) · out(r, lane) + Σ_k a(k, r) · b(k, lane); factor null means 1.
void accumulate(const TileProductSize& size, ConstStridedTile a, ConstStridedTile b, const float* factor,
                StridedTile out);

}  // namespace annulus::attention::host_simd
