#pragma once

#include <cuda_runtime_api.h>

#include <annulus/sequence/mask_rule.hpp>

#include "attention/hopper/workspace.hpp"

namespace annulus::attention::hopper {

/// How the sums of dQ are ordered while a launch runs (query_gradient.hpp).
struct GradientOrder {
  enum Kind { none, rows, lanes, lanes_in_turn } kind = none;
  bool fresh = false;  ///< nothing was there before
};

struct WalkSides {
  PositionMap own, other;
  int own_tile, other_tile;  ///< rows of a tile
  bool own_is_query;
};

/// Fills the tables of a walk in `workspace`, and its counters with zeros. Masks without dilation and block
/// list alone: their rows see intervals, whose ends never decrease from row to row.
cudaError_t fill_walk_tables(const MaskRule& mask, const WalkSides& sides, GradientOrder gradients,
                             const Workspace& workspace, cudaStream_t stream);

}  // namespace annulus::attention::hopper
