#pragma once

#include <cstdint>

/// Tile shapes, and why they are what they are. A multiprocessor has 227 KB of shared memory and 65536
/// registers for the one block that runs on it.
namespace annulus::attention::hopper {

/// Tiles in shared memory are panels of 64 columns of 16 bits (wgmma.hpp).
inline constexpr int panel_columns = 64, panel_row_bytes = 128;

/// Warpgroup 0 copies, the others compute.
inline constexpr int warpgroup = 128;  // threads

/// Forward: a block holds q_rows = 64 · consumers queries, and keys pass by in tiles of kv_rows.
///
/// head_dim 64: 192 × 128, three consumers of 160 registers. The exponentials of a tile take as long as its
/// products; a third warpgroup keeps the tensor cores busy (in our prototype 510 TFLOP/s, 430 with two).
///
/// head_dim 128: 128 × 128, two consumers of 240 registers, of which S, P and O take 160.
template <int head_dim_>
struct ForwardTile {
  static constexpr int head_dim = head_dim_;
  static constexpr int consumers = head_dim <= 64 ? 3 : 2, stages = 2;
  static constexpr int q_rows = 64 * consumers, kv_rows = 128;
  static constexpr int panels = (head_dim + panel_columns - 1) / panel_columns;
  static constexpr int threads = warpgroup * (consumers + 1);
  static constexpr int consumer_registers = consumers == 2 ? 240 : 160;
  static constexpr int producer_registers = consumers == 2 ? 24 : 32;
};

/// Backward: a block holds kv_rows keys, two consumers with 64 of them each, and queries pass by in tiles of
/// q_rows.
///
/// head_dim 64: 128 × 128.
///
/// head_dim 128: 64 × 128. dK and dV take 128 registers of 240, so that S and dP can have 32 each.
template <int head_dim_>
struct BackwardTile {
  static constexpr int head_dim = head_dim_;
  static constexpr int consumers = 2, stages = 2;
  static constexpr int q_rows = head_dim <= 64 ? 128 : 64, kv_rows = 64 * consumers;
  static constexpr int panels = (head_dim + panel_columns - 1) / panel_columns;
  static constexpr int threads = warpgroup * (consumers + 1);
  static constexpr int consumer_registers = 240, producer_registers = 24;
  /// Blocks of one head start one after the other where they keep an order, and read the same queries. With
  /// more heads at once they wait less and read more. Measured with 1 to 12 (132 multiprocessors, 8192 to
  /// 65536 rows).
  static constexpr int heads_in_section = head_dim <= 64 ? 8 : 4;
};

/// Forward: heads run in sections whose tensors stay in the L2 cache (50 MB). In our prototype
/// sections of 5 to 80 MB were within 1 to 2 % of each other.
inline constexpr std::int64_t section_bytes = std::int64_t{40} << 20;

}  // namespace annulus::attention::hopper
