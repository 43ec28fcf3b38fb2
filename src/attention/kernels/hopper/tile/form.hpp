#pragma once

#include <cstddef>

namespace annulus::attention::hopper {

/// What a kernel is compiled for beside the columns of its tiles.
enum class TileForm {
  whole,  ///< rows have all columns
  /// Rows have fewer columns in memory. TMA fills the columns behind them with zeros, which change no
  /// product, and leaves them out where it stores; threads leave them out by the width of the rows. Products
  /// take as long as those of all columns.
  clipped,
  /// Scores are capped: soft_cap · tanh(score / soft_cap). Kernels take the tangent of the scores, to a
  /// relative error of 2⁻¹¹, and go on as with scores whose scale is the cap. Without block lists.
  capped,
  /// Forward: sinks join the rows at their end. Without block lists.
  sinks,
};

/// Whether there are capped tiles for rows of so many columns of bfloat16: kernels of head dimension 256
/// compile for minutes, so there are those that models with caps have.
constexpr bool has_capped_tiles(std::size_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

/// Whether there are forward tiles that sinks join for rows of so many columns of bfloat16. All other rows
/// are joined outside of the kernel (attention::join_sinks), which reads and writes them once more.
constexpr bool has_sink_tiles(std::size_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

/// Whether there are tiles, of bfloat16, for rows of Q and K and rows of V of different widths.
constexpr bool has_tiles_of_two_widths(std::size_t head_dim, std::size_t v_head_dim) {
  return head_dim == 192 && v_head_dim == 128;
}

/// Whether tiles of so many columns are compiled for block lists.
constexpr bool takes_block_lists(std::size_t head_dim) {
  return head_dim != 192;
}

/// Whether there are forward tiles for narrow windows, and rows of so many columns.
constexpr bool has_narrow_window_tiles(std::size_t head_dim) {
  return head_dim == 64;
}

}  // namespace annulus::attention::hopper
