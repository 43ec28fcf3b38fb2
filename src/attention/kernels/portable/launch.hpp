#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention/kernels/portable/scratch.hpp"

namespace annulus::attention::portable {

/// On the host one thread does the work of a whole team, so that results do not depend on the number of
/// threads.
template <class Exec>
inline constexpr bool one_thread = std::is_same_v<Exec, HostExec>;

// Causal tiles differ in cost, so threads take them as they become free. A tile's result does not depend on
// who computes it.
template <class Exec, int threads, int teams>
using Policy =
    Kokkos::TeamPolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::LaunchBounds<threads, teams>>;
template <class Exec, int threads>
using Member = typename Policy<Exec, threads, 1>::member_type;

/// What the threads of a team keep in registers from barrier to barrier.
template <class Exec, int threads, class State>
class Threads {
 public:
  /// action(thread, its state), of every thread.
  template <class Action>
  KOKKOS_FORCEINLINE_FUNCTION void each([[maybe_unused]] const Member<Exec, threads>& member,
                                        const Action& action) {
    if constexpr (one_thread<Exec>) {
      for (int thread = 0; thread < threads; ++thread) action(thread, states_[thread]);
    } else {
      action(member.team_rank(), states_[0]);
    }
  }

 private:
  State states_[one_thread<Exec> ? threads : 1];
};

/// Which rows of which (batch, head) a team owns.
struct TeamTile {
  std::int64_t batch, head, tile;

  /// Tiles of one head are neighbours, so that teams that run at the same time share the other side's rows in
  /// cache.
  KOKKOS_FUNCTION static TeamTile of(std::int64_t league_rank, std::int64_t heads, std::int64_t tiles) {
    return {league_rank / tiles / heads, league_rank / tiles % heads, league_rank % tiles};
  }
};

/// Calls action(width) with the columns of tiles that rows of so many fit, as an integral constant.
template <class Action>
void with_width(int columns, const Action& action) {
  if (columns <= 64) return action(std::integral_constant<int, 64>());
  if (columns <= 128) return action(std::integral_constant<int, 128>());
  action(std::integral_constant<int, 256>());
}

/// Runs `kernel` with one team per (batch, head, tile).
template <class Exec, class Kernel>
void launch(const Exec& exec, const char* label, const Kernel& kernel) {
  const std::int64_t leagues = kernel.leagues();
  require(leagues <= std::numeric_limits<int>::max(),
          "{}: {} tiles are more than one launch can hold: split the batch or the heads", label, leagues);
  Policy<Exec, Kernel::threads, Kernel::teams> policy(exec, static_cast<int>(leagues),
                                                      one_thread<Exec> ? 1 : int{Kernel::threads}, 1);
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Scratch::bytes())));
  Kokkos::parallel_for(label, policy, kernel);
}

}  // namespace annulus::attention::portable
