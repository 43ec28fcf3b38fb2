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

/// Whose mass the pairs of a key and a block distance are.
struct PairOwner {
  const std::int64_t* masses = nullptr;  ///< of the list; null: that of the key and of the block distance
  std::int64_t first_slash;

  /// The one of the two that is worth more, of equal ones the slash.
  KOKKOS_FUNCTION bool is_slash(std::int64_t key, std::int64_t distance) const {
    return masses == nullptr ||
           worth_of_mass(masses[first_slash + distance], true) >= worth_of_mass(masses[key], false);
  }
  KOKKOS_FUNCTION bool is_key(std::int64_t key, std::int64_t distance) const {
    return masses == nullptr || !is_slash(key, distance);
  }
};

/// The probabilities of a window, of all query heads.
template <class Exec>
struct WindowProbabilities {
  Array3<float, Exec> scores;  ///< (heads, keys, queries of a window)
  Array1<float, Exec> maxima, inverse_sums;

  /// The mass of a key row for the queries `from` … behind − 1 of a window, of one block, whose first query
  /// has `place` among all of the head: the share of one of `lanes` threads. `width` divides the window's
  /// queries.
  template <int width, int lanes>
  KOKKOS_FUNCTION std::int64_t mass(std::int64_t head, std::int64_t row, std::int64_t place, int from,
                                    int behind, int lane) const {
    const float *const some = &scores(head, row, 0), *const highest = &maxima(place),
                       *const inverse = &inverse_sums(place);
    const auto of_query = [](float score, float maximum, float inverse_sum) {
      return scaled_floor(exponential(score - maximum) * inverse_sum, mass_exponent);
    };
    std::int64_t sum = 0;
    if (behind - from == block_tokens && from % width == 0) {  // nearly always; loads wait for no others
      constexpr int packs = block_tokens / (width * lanes);
      Pack<width> loaded[packs];
      for (int i = 0; i < packs; ++i) loaded[i] = load<width>(some + from + (i * lanes + lane) * width);
      for (int i = 0; i < packs; ++i) {
        const int query = from + (i * lanes + lane) * width;
        const Pack<width> maximum = load<width>(highest + query), inverse_sum = load<width>(inverse + query);
        for (int n = 0; n < width; ++n) sum += of_query(loaded[i][n], maximum[n], inverse_sum[n]);
      }
    } else {
      for (int query = from + lane; query < behind; query += lanes)
        sum += of_query(some[query], highest[query], inverse[query]);
    }
    return sum;
  }
};

/// masses (lists, MassPlaces::all()): those of the probabilities of this rank's keys are added. With
/// `before`, such masses of all ranks, a pair counts once, for its Owner. `width` divides the queries.
template <int width, class Exec>
void add_masses(const Exec& exec, const ObservationWindows& windows,
                const WindowProbabilities<Exec>& probabilities, std::int64_t all_keys,
                const Array2<const std::int64_t, Exec>& before, const Array2<std::int64_t, Exec>& masses) {
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<128, 8>>;
  constexpr bool on_host = detail::host_memory<Exec>;
  constexpr int rows_at_once = on_host ? 1 : 32, lanes = on_host ? 1 : 4;  // of a row: neighbouring loads
  const std::int64_t queries = windows.queries(), tiles = windows.observed.tiles.count;
  const auto lists = static_cast<std::int64_t>(masses.extent(0)),
             stride = static_cast<std::int64_t>(masses.extent(1));
  const std::int64_t heads_of_list = windows.heads / lists;
  if (tiles == 0) return;
  Kokkos::parallel_for(
      "annulus::sparsity::window_masses", Policy(exec, static_cast<int>(lists * tiles), rows_at_once, lanes),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t list = team.league_rank() / tiles;
        const attention::KeyTile tile =
            windows.observed.tiles.tile(team.league_rank() % tiles, windows.keys.count);
        const ObservedDocument document = windows.observed.documents[tile.group];
        const std::int64_t first_slash = all_keys + document.first_slash,
                           begin_of_window = document.end - queries;
        const PairOwner owner{before.data() == nullptr ? nullptr : before.data() + list * stride,
                              first_slash};
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.rows), [&](const int in_tile) {
          const std::int64_t row = tile.first + in_tile, key = windows.keys(row);
          std::int64_t of_key = 0;
          // The queries that see the key, block by block.
          for (std::int64_t begin = key > begin_of_window ? key : begin_of_window, end; begin < document.end;
               begin = end) {
            const std::int64_t block = begin / block_tokens, behind = (block + 1) * block_tokens;
            end = behind < document.end ? behind : document.end;
            std::int64_t of_block = 0;
            Kokkos::parallel_reduce(
                Kokkos::ThreadVectorRange(team, lanes),
                [&](const int lane, std::int64_t& sum) {
                  for (std::int64_t head = list * heads_of_list; head < (list + 1) * heads_of_list; ++head)
                    sum += probabilities.template mass<width, lanes>(
                        head, row, windows.place(head, tile.group), static_cast<int>(begin - begin_of_window),
                        static_cast<int>(end - begin_of_window), lane);
                },
                of_block);
            const std::int64_t distance = block - key / block_tokens;
            if (owner.is_key(key, distance)) of_key += of_block;
            if (of_block > 0 && owner.is_slash(key, distance))
              Kokkos::single(Kokkos::PerThread(team),
                             [&] { Kokkos::atomic_add(&masses(list, first_slash + distance), of_block); });
          }
          Kokkos::single(Kokkos::PerThread(team), [&] { masses(list, key) = of_key; });
        });
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
  // Bits of rows are whole numbers, beside zeros of other ranks.
  communicator.all_reduce(
      queue, rows.view().data(),
      {.count = rows.view().size() * sizeof(T) / sizeof(std::int32_t), .type = DType::i32});
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

  const WindowProbabilities<Exec> probabilities{*scores, *maxima, *inverse_sums};
  const auto masses_of = [&](const Array2<const std::int64_t, Exec>& before) {
    auto masses = Owned<Array2<std::int64_t, Exec>>::zeroed(exec, workspace, "annulus::sparsity::masses",
                                                            batch * lists, places.all());
    with_pack_width<Exec, float>(in_packs<Exec, float>(windows.queries(), *scores), [&](auto width) {
      add_masses<width(), Exec>(exec, windows, probabilities, places.first_slash(), before, *masses);
    });
    communicator.all_reduce(queue, *masses);
    return masses;
  };
  auto masses = masses_of({});
  if (once) masses = masses_of(*masses);
  return masses;
}

}  // namespace annulus::sparsity
