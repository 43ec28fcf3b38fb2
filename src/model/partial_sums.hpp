#pragma once

#include <Kokkos_Core.hpp>

#include <annulus/base/division.hpp>
#include <annulus/core/pack.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::model {

/// sum(c) += Σ over the first `rows` rows of partial(row, c): how gradients of gains and biases are formed of
/// partial sums over blocks of tokens (rows_per_partial). A team takes 32 columns; sections of the rows are
/// summed side by side and then added in order.
template <class Exec>
void add_partial(const Exec& exec, const Array2<const float, Exec>& partial, int rows,
                 const Array1<float, Exec>& sum) {
  constexpr int columns_of_team = 32, sections_of_rows = 32;
  using Scratch = Kokkos::View<float[sections_of_rows][columns_of_team], typename Exec::scratch_memory_space,
                               Kokkos::MemoryUnmanaged>;
  using Team = Kokkos::TeamPolicy<Exec>;
  constexpr bool host = detail::host_memory<Exec>;
  const int columns = sum.extent_int(0);
  Kokkos::parallel_for(
      "annulus::model::add_partial",
      Team(exec, ceil_divide(columns, columns_of_team), host ? 1 : sections_of_rows,
           host ? 1 : columns_of_team)
          .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Scratch::shmem_size()))),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const Scratch sections(team.team_scratch(0));
        const int first = team.league_rank() * columns_of_team;
        const int width = Kokkos::min(columns_of_team, columns - first);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, sections_of_rows), [&](const int section) {
          Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, width), [&](const int c) {
            float part = 0.0f;
            for (int row = section; row < rows; row += sections_of_rows) part += partial(row, first + c);
            sections(section, c) = part;
          });
        });
        team.team_barrier();
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [&](const int c) {
          float all = 0.0f;
          for (int section = 0; section < sections_of_rows; ++section) all += sections(section, c);
          sum(first + c) += all;
        });
      });
}

}  // namespace annulus::model
