#pragma once

#include <Kokkos_Core.hpp>

namespace annulus::attention::portable {

/// Sizes that are fixed when a kernel is compiled for an execution space.
///
/// Each thread computes register tiles of `rows` × `columns` of a matrix product, the columns contiguous in
/// scratch.
template <class Exec>
struct Registers {
  static constexpr bool host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible &&
      Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible;
  // Host: 4 × 32 floats are 8 AVX-512 or 16 AVX2 registers, enough to hide the latency of the multiply-add.
  // Fewer columns make g++ unroll the loop over them before it is vectorised (measured: 13 instead of 186
  // GFLOP/s). Device: 4 × 4 is the usual register tile; a load of four columns is one 16-byte load.
  static constexpr int rows = 4, columns = host ? 32 : 4;
  // Consecutive scores that one thread takes in the softmax: a vector's worth on the host, one on a device.
  static constexpr int lanes = host ? 32 : 1;
};

/// Sizes of a launch, chosen by head dimension. A team owns `own` rows (queries in the forward pass and for
/// dQ, keys for dK and dV) and walks over the other side in tiles of `inner` rows.
struct Tiles {
  int own, inner;   ///< rows; multiples of the register tile's sides
  int width;        ///< the larger head dimension rounded up to whole register tiles
  int inner_level;  ///< scratch level of the inner tiles; everything else lies at level `level`
  int level;
  int threads, vector;  ///< team shape

  /// Host: a team is one thread, so that results do not depend on the number of threads; its ~200 KiB of
  /// tiles (at head_dim 128) stay in a second level cache.
  static constexpr Tiles host(int head_dim) { return {64, 64, (head_dim + 31) / 32 * 32, 1, 1, 1, 1}; }

  /// Devices: what a team owns must fit 48 KiB, which every GPU gives a block without asking; the inner tiles
  /// go there too where they fit, else to level 1 (cached global memory).
  ///
  ///   head_dim   own × inner   own tiles  scores  inner tiles
  ///   ≤ 64       32 × 32       16 KiB     8 KiB   16 KiB, level 0
  ///   ≤ 128      32 × 32       32 KiB     8 KiB   32 KiB, level 1
  ///   ≤ 256      16 × 32       32 KiB     4 KiB   64 KiB, level 1
  ///
  /// 128 threads: as many as there are register tiles in a product of the smallest case (16 × 128).
  static constexpr Tiles device(int head_dim) {
    return {head_dim <= 128 ? 32 : 16, 32, head_dim, head_dim <= 64 ? 0 : 1, 0, 4, 32};
  }

  template <class Exec>
  static constexpr Tiles of(int head_dim) {
    return Registers<Exec>::host ? host(head_dim) : device(head_dim);
  }
};

}  // namespace annulus::attention::portable
