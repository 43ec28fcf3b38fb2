#pragma once

#include <cstddef>

namespace annulus::attention::hopper {

/// What a kernel is compiled for beside the columns of its tiles.
enum class TileForm {
  whole,    ///< rows have all columns
  clipped,  ///< rows have fewer columns in memory
  capped,   ///< rows have all columns, and scores a soft cap; without block lists
};

/// Whether there are capped tiles for rows of so many columns of bfloat16: kernels of head dimension 256
/// compile for minutes, so there are those that models with caps have.
constexpr bool has_capped_tiles(std::size_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

}  // namespace annulus::attention::hopper
