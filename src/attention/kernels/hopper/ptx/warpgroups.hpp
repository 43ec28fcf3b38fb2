#pragma once

/// Numbers of the hardware from which tile shapes follow, for code of the host, too.
namespace annulus::attention::hopper {

/// Threads of a warpgroup. Warpgroup 0 of a block is the producer, the others are consumers.
inline constexpr int warpgroup = 128;
inline constexpr int most_consumers = 4;  ///< warpgroups of a block that compute

/// Extents of a row of a swizzle atom (ptx/wgmma.hpp).
inline constexpr int atom_columns = 64, atom_row_bytes = 128;

}  // namespace annulus::attention::hopper
