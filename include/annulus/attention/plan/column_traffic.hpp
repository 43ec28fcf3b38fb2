#pragma once

#include <cstdint>

namespace annulus::plan {

/// Bytes that each of `ranks` ranks sends for keys that dynamic sparse attention takes one by one, its
/// columns (docs/sparsity.md). `columns`: of all selections together, each counted as having as many as the
/// one that has the most. `element_bytes`: what travels for an element of K and V: its own bytes in the
/// forward pass, its own and 4 for the fp32 sums of dK and dV in the backward pass. A sum over ranks, which
/// also gathers, sends 2 · (ranks − 1) / ranks of what it sums.
inline std::int64_t column_traffic(std::int64_t columns, int head_dim, std::int64_t element_bytes,
                                   int ranks) {
  return 2 * columns * head_dim * element_bytes * 2 * (ranks - 1) / ranks;
}

}  // namespace annulus::plan
