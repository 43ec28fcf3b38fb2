#pragma once

#include <cuda_runtime_api.h>

#include "attention/kernels/hopper/schedule/tile_sides.hpp"

namespace annulus::attention::hopper {

/// Whether own tiles add to the gradients of what they visit, and how (backward/dq_accumulation.hpp).
enum class GradientSums {
  none,
  any,         ///< they add
  first_sets,  ///< the first own tile that visits a tile writes, the others add
};

/// Fills the tables of a tile loop in `workspace`, of this size, and what counters start from. A block list
/// goes without dilation.
cudaError_t fill_tile_tables(const MaskRule& mask, const TileSides& sides, GradientSums gradients,
                             const TileTablesSize& size, const TableMemory& workspace, cudaStream_t stream);

}  // namespace annulus::attention::hopper
