#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/error.hpp>
#include <cstdint>
#include <limits>

#include "attention/kernels/portable/scratch.hpp"

namespace annulus::attention::portable {

// Causal tiles differ in cost, so threads take them as they become free. A tile's result does not depend on
// who computes it.
template <class Exec>
using Policy = Kokkos::TeamPolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>;
template <class Exec>
using Member = typename Policy<Exec>::member_type;

/// Which rows of which (batch, head) a team owns.
struct TeamTile {
  std::int64_t batch, head, tile;

  /// Tiles of one head are neighbours, so that teams that run at the same time share the other side's rows in
  /// cache.
  KOKKOS_FUNCTION static TeamTile of(std::int64_t league_rank, std::int64_t heads, std::int64_t tiles) {
    return {league_rank / tiles / heads, league_rank / tiles % heads, league_rank % tiles};
  }
};

/// Runs `kernel` with one team per (batch, head, tile).
template <class Exec, class Kernel>
void launch(const Exec& exec, const char* label, std::int64_t leagues, const Tiles& tiles,
            const Kernel& kernel) {
  require(leagues <= std::numeric_limits<int>::max(),
          "{}: {} tiles are more than one launch can hold: split the batch or the heads", label, leagues);
  Policy<Exec> policy(exec, static_cast<int>(leagues), tiles.threads, tiles.vector);
  for (const int level : {0, 1}) {
    const auto bytes = Scratch::bytes(tiles, level);
    if (bytes > 0) policy.set_scratch_size(level, Kokkos::PerTeam(static_cast<int>(bytes)));
  }
  Kokkos::parallel_for(label, policy, kernel);
}

}  // namespace annulus::attention::portable
