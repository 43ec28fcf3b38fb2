#pragma once

#include <Kokkos_Core.hpp>
#include <string>

#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/pack.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// Gradients of gains are formed of partial sums over so many tokens. Fixed, so that they do not depend on
/// the number of threads. A team has one of them: chunks of 4096 tokens make two teams for each SM of an
/// H100.
inline constexpr int rows_per_partial = 16;

/// body(row, column) for every row and the first column of every pack of `width` columns, which divides
/// `columns`. Bodies take rows as std::int64_t where they index arrays with them: Kokkos computes the offset
/// of an element in the widest type of its indices, and a rank's arrays may have more than 2³¹ elements. On a
/// device a warp walks along a row, so that neighbouring lanes touch neighbouring packs; a long row is shared
/// by several, so that the last warps do not keep the device waiting.
template <int width, class Exec, class Body>
void for_each_pack(const std::string& label, const Exec& exec, int rows, int columns, const Body& body) {
  constexpr bool host = detail::host_memory<Exec>;
  constexpr int rows_of_team = 8, lanes = host ? 1 : 32;
  // As few registers as let four teams be on an SM: offsets of 64 bits would take more.
  using Team = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<rows_of_team * 32, 4>>;
  const int packs = columns / width, section = host ? Kokkos::max(packs, 1) : 8 * lanes;
  const int sections = ceil_divide(packs, section);
  const int teams = ceil_divide(rows, rows_of_team) * sections;
  Kokkos::parallel_for(
      label, Team(exec, teams, host ? 1 : rows_of_team, lanes),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const int row_begin = team.league_rank() / sections * rows_of_team;
        const int row_end = Kokkos::min(rows, row_begin + rows_of_team);
        const int begin = team.league_rank() % sections * section, end = Kokkos::min(packs, begin + section);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, row_begin, row_end), [&](const int row) {
          Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, begin, end),
                               [&](const int pack) { body(row, pack * width); });
        });
      });
}

/// What elements from `first` on are multiplied by.
template <int width, class Exec, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<width> load_gain(const NormGain<Exec, T>& gain, std::int64_t first) {
  auto values = load<width>(gain.weight.data() + first);
  if (gain.from_one)
    for (int i = 0; i < width; ++i) values[i] += 1.0f;
  return values;
}

/// Packs of a row that a thread keeps in registers between two passes over the row.
inline constexpr int held_packs = 2;

inline constexpr int most_threads_of_row = 512;

/// Threads of a team that works on one row of `packs` packs and sums over it. A power of two; fixed for a
/// shape, hence a fixed order of addition.
template <class Exec>
int threads_of_row(int packs) {
  if constexpr (detail::host_memory<Exec>) {
    return 1;
  } else {
    int threads = 32;
    while (threads < most_threads_of_row && held_packs * threads < packs) threads *= 2;
    return threads;
  }
}

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
            for (std::int64_t row = section; row < rows; row += sections_of_rows)
              part += partial(row, first + c);
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
