#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/kernels/scores.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/exponential_sums.hpp"
#include "attention/sparsity/patterns/mass_places.hpp"
#include "attention/sparsity/patterns/observed_documents.hpp"
#include "attention/sparsity/take_rows.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"

/// The observation windows: the last queries of each document against its keys, each rank its own keys, and
/// the masses of their softmax (MTraining, Algorithm 1). Sums over keys are of 64-bit integers, so that
/// nobody's order matters.
namespace annulus::sparsity {

/// A probability of 1 is a mass of 2⁴⁴: those of a window of 2¹⁴ queries of a group of heads stay below 2⁶².
inline constexpr int mass_exponent = 44;

namespace window_detail {  // named: device compilers want lambdas and their captures to have linkage

/// The windows of all query heads and this rank's keys. A sequence's heads times the batch are its heads
/// here.
struct ObservationWindows {
  std::int64_t heads;
  ObservedSpans observed;
  PositionMap keys;

  std::int64_t queries() const { return observed.queries; }
  /// Index of query 0 of a window among all queries of all heads.
  KOKKOS_FUNCTION std::int64_t place(std::int64_t head, std::int64_t document) const {
    return (head * observed.count + document) * observed.queries;
  }
};

/// Whose mass a pair is.
struct PairOwner {
  const std::int64_t* masses = nullptr;  ///< of the list; null: that of its key and of its block distance
  std::int64_t first_slash;

  /// The one of the two that is worth more, of equal ones the slash.
  KOKKOS_FUNCTION bool is_slash(std::int64_t key, std::int64_t distance) const {
    return masses != nullptr &&
           worth_of_mass(masses[first_slash + distance], true) >= worth_of_mass(masses[key], false);
  }
  KOKKOS_FUNCTION bool is_key(std::int64_t key, std::int64_t distance) const {
    return masses == nullptr || !is_slash(key, distance);
  }
};

/// masses (lists, MassPlaces::all()): those of the probabilities of this rank's keys are added. With
/// `before`, such masses of all ranks, a pair counts once, for its Owner. `width` divides the queries.
template <int width, class Exec>
void add_masses(const Exec& exec, const ObservationWindows& windows, const Array3<float, Exec>& scores,
                const Array1<float, Exec>& maxima, const Array1<float, Exec>& inverse_sums,
                std::int64_t all_keys, const Array2<const std::int64_t, Exec>& before,
                const Array2<std::int64_t, Exec>& masses) {
  const std::int64_t queries = windows.queries(),
                     rows = windows.observed.tiles.count * attention::KeyTile::most_rows;
  const auto lists = static_cast<std::int64_t>(masses.extent(0)),
             stride = static_cast<std::int64_t>(masses.extent(1));
  const std::int64_t heads_of_list = windows.heads / lists;
  Kokkos::parallel_for(
      "annulus::sparsity::window_masses", Kokkos::RangePolicy<Exec>(exec, 0, lists * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const attention::KeyTile tile =
            windows.observed.tiles.tile(i % rows / attention::KeyTile::most_rows, windows.keys.count);
        const std::int64_t in_tile = i % attention::KeyTile::most_rows;
        if (in_tile >= tile.rows) return;
        const std::int64_t list = i / rows, row = tile.first + in_tile, key = windows.keys(row);
        const ObservedDocument document = windows.observed.documents[tile.group];
        const std::int64_t first_slash = all_keys + document.first_slash,
                           begin_of_window = document.end - queries;
        const PairOwner owner{before.data() == nullptr ? nullptr : before.data() + list * stride,
                              first_slash};
        std::int64_t of_key = 0;
        for (std::int64_t head = list * heads_of_list; head < (list + 1) * heads_of_list; ++head) {
          std::int64_t of_slash = 0, distance = -1;
          const auto go_to = [&](std::int64_t position) {
            const std::int64_t here = position / block_tokens - key / block_tokens;
            if (here != distance && of_slash > 0)
              Kokkos::atomic_add(&masses(list, first_slash + distance), of_slash);
            if (here != distance) of_slash = 0;
            distance = here;
          };
          for (std::int64_t begin = 0; begin < queries; begin += width) {
            const std::int64_t place = windows.place(head, tile.group) + begin,
                               first = begin_of_window + begin;
            const Pack<width> some = load<width>(&scores(head, row, begin)),
                              highest = load<width>(&maxima(place)),
                              inverse = load<width>(&inverse_sums(place));
            const auto mass = [&](int n) {
              return scaled_floor(exponential(some[n] - highest[n]) * inverse[n], mass_exponent);
            };
            // Nearly always: all queries of the pack see the key, and lie in one block.
            if (owner.masses == nullptr && key <= first &&
                first / block_tokens == (first + width - 1) / block_tokens) {
              go_to(first);
              std::int64_t of_pack = 0;
              for (int n = 0; n < width; ++n) of_pack += mass(n);
              of_key += of_pack;
              of_slash += of_pack;
              continue;
            }
            for (int n = 0; n < width; ++n) {
              if (first + n < key) continue;
              go_to(first + n);
              const std::int64_t of_pair = mass(n);
              if (owner.is_key(key, distance)) of_key += of_pair;
              if (owner.masses == nullptr || owner.is_slash(key, distance)) of_slash += of_pair;
            }
          }
          if (of_slash > 0) Kokkos::atomic_add(&masses(list, first_slash + distance), of_slash);
        }
        masses(list, key) = of_key;
      });
}

}  // namespace window_detail

/// The masses of the softmax of the windows' queries, (batch · lists, MassPlaces::all()), the same on all
/// ranks: of each key (vertical mass), and behind them of each block distance (slash mass), in units of 2⁻⁴⁴
/// and summed over the query heads of a list. With `once` each pair counts for one of the two alone, the one
/// that is worth more by the masses of all pairs (worth_of_mass). Collective.
template <class Exec, class T>
Owned<Array2<std::int64_t, Exec>> window_masses(const Exec& exec, comm::Communicator& communicator,
                                                const PatternInputs<Exec, T>& in,
                                                const ObservedDocuments<Exec>& observed, std::int64_t lists,
                                                bool once) {
  using namespace window_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  constexpr auto workspace = MemoryCategory::workspace;
  const Queue queue(exec);
  const int batch = in.q.extent_int(0), heads = in.q.extent_int(1), width = in.q.extent_int(3);
  const ObservationWindows windows{std::int64_t{batch} * heads, observed.spans(), in.positions};
  const MassPlaces& places = observed.places();
  const std::int64_t all_queries = observed.all_queries();

  const auto rows = Owned<Array4<T, Exec>>::uninitialized(exec, workspace, "annulus::sparsity::window", batch,
                                                          heads, all_queries, width);
  take_rows<Exec, T>(exec, in.q, in.positions, ListedRows{observed.windows(), all_queries}, *rows);
  communicator.all_reduce(queue, *rows);
  const auto scores =
      Owned<Array3<float, Exec>>::uninitialized(exec, workspace, "annulus::sparsity::window_scores",
                                                windows.heads, in.positions.count, windows.queries());
  const auto maxima = Owned<Array1<float, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::window_maxima", windows.heads * all_queries);
  Kokkos::deep_copy(exec, *maxima, -Kokkos::Experimental::infinity_v<float>);
  const Array4<const T, Exec> window_rows = *rows;
  if (windows.observed.tiles.count > 0)
    attention::causal_scores<Exec, T>(exec,
                                      {.q = window_rows,
                                       .k = in.k,
                                       .k_positions = in.positions,
                                       .scale = in.scale,
                                       .q_listed = observed.windows(),
                                       .groups = windows.observed.count,
                                       .tiles = windows.observed.tiles},
                                      *scores, *maxima);
  communicator.all_reduce(queue, *maxima, comm::ReduceOp::max);
  const int exponent = unit_exponent(in.tokens);
  const auto sums = Owned<Array1<std::int64_t, Exec>>::zeroed(
      exec, workspace, "annulus::sparsity::window_sums", windows.heads * all_queries);
  add_exponentials<Exec>(exec, windows.observed.tiles, windows.observed.count, *scores, *maxima, exponent,
                         *sums);
  communicator.all_reduce(queue, *sums);
  const auto inverse_sums = Owned<Array1<float, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::inverse_sums", windows.heads * all_queries);
  invert<Exec>(exec, *sums, exponent, *inverse_sums);

  const auto masses_of = [&](const Array2<const std::int64_t, Exec>& before) {
    auto masses = Owned<Array2<std::int64_t, Exec>>::zeroed(exec, workspace, "annulus::sparsity::masses",
                                                            batch * lists, places.all());
    with_pack_width<Exec, float>(in_packs<Exec, float>(windows.queries(), *scores), [&](auto width) {
      add_masses<width(), Exec>(exec, windows, *scores, *maxima, *inverse_sums, places.first_slash(), before,
                                *masses);
    });
    communicator.all_reduce(queue, *masses);
    return masses;
  };
  auto masses = masses_of({});
  if (once) masses = masses_of(*masses);
  return masses;
}

}  // namespace annulus::sparsity
