#pragma once

#include <Kokkos_Core.hpp>
#include <string>

#include <annulus/core/pack.hpp>

namespace annulus::model {

/// Sums over tokens are formed of partial sums over so many. Fixed, so that they do not depend on the number
/// of threads.
inline constexpr int rows_per_partial = 32;

/// body(row, column) for every row and the first column of every pack of `width` columns, which divides
/// `columns`. On a device a warp walks along a row, so that neighbouring lanes touch neighbouring packs.
template <int width, class Exec, class Body>
void for_each_pack(const std::string& label, const Exec& exec, int rows, int columns, const Body& body) {
  using Team = Kokkos::TeamPolicy<Exec>;
  constexpr bool host = detail::host_memory<Exec>;
  constexpr int rows_of_team = 8;
  const int teams = (rows + rows_of_team - 1) / rows_of_team, packs = columns / width;
  Kokkos::parallel_for(
      label, Team(exec, teams, host ? 1 : rows_of_team, host ? 1 : 32),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const int begin = team.league_rank() * rows_of_team;
        const int end = Kokkos::min(rows, begin + rows_of_team);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, begin, end), [&](const int row) {
          Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, packs),
                               [&](const int pack) { body(row, pack * width); });
        });
      });
}

/// Packs of a row that a thread keeps in registers between two passes over the row.
inline constexpr int held_packs = 2;

/// Threads of a team that works on one row of `packs` packs and sums over it. A power of two; fixed for a
/// shape, hence a fixed order of addition.
template <class Exec>
int threads_of_row(int packs) {
  if constexpr (detail::host_memory<Exec>) {
    return 1;
  } else {
    int threads = 32;
    while (threads < 512 && held_packs * threads < packs) threads *= 2;
    return threads;
  }
}

}  // namespace annulus::model
