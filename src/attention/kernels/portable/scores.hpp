#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/base/division.hpp>

#include "attention/kernels/scores.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::attention::portable {

namespace scores_detail {  // named: device compilers want lambdas and their captures to have linkage

inline constexpr int chunk = 16;  // queries of a thread

/// transposed (heads, head_dim, groups · whole chunks) = scale · q (heads, groups · queries, head_dim), and
/// zeros behind those of a group.
template <class Exec, class T>
void transpose(const Exec& exec, const Strided4<const T, Exec>& q, float scale, std::int64_t groups,
               const Array3<float, Exec>& transposed) {
  const auto heads = static_cast<std::int64_t>(q.extent(1)), width = static_cast<std::int64_t>(q.extent(3)),
             places = static_cast<std::int64_t>(transposed.extent(2)),
             of_group = static_cast<std::int64_t>(q.extent(2)) / groups, places_of_group = places / groups;
  Kokkos::parallel_for(
      "annulus::attention::transpose_queries", Kokkos::RangePolicy<Exec>(exec, 0, transposed.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / places / width, c = i / places % width, place = i % places;
        const bool some = place % places_of_group < of_group;
        const std::int64_t query = place / places_of_group * of_group + place % places_of_group;
        transposed(head, c, place) =
            some ? scale * static_cast<float>(q(head / heads, head % heads, query, c)) : 0.0f;
      });
}

template <int width, class Exec, class T>
void score(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& queries,
           const Array3<float, Exec>& scores) {
  constexpr std::int64_t keys = 4;  // of a thread: queries are read once for all of them
  const auto heads = static_cast<std::int64_t>(scores.extent(0)),
             rows = static_cast<std::int64_t>(scores.extent(1)),
             queries_of_group = static_cast<std::int64_t>(scores.extent(2)),
             places_of_group = static_cast<std::int64_t>(queries.extent(2)) / in.groups,
             heads_of_sequence = static_cast<std::int64_t>(in.q.extent(1)),
             head_dim = static_cast<std::int64_t>(in.k.extent(3));
  const auto group = static_cast<std::int64_t>(in.q.extent(1) / in.k.extent(1));
  constexpr std::int64_t parts_of_tile = KeyTile::most_rows / keys;
  const KeyTiles tiles = in.all_tiles();
  const std::int64_t chunks = places_of_group / chunk, parts = tiles.count * parts_of_tile;
  const T* const k = in.k.data();
  const PositionMap positions = in.k_positions;
  Kokkos::parallel_for(
      "annulus::attention::scores", Kokkos::RangePolicy<Exec>(exec, 0, heads * chunks * parts),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / parts / chunks, begin = i / parts % chunks * chunk;
        const KeyTile tile = tiles.tile(i % parts / parts_of_tile, rows);
        const std::int64_t first = tile.first + i % parts_of_tile * keys, behind = tile.first + tile.rows,
                           first_query = tile.group * queries_of_group;
        if (first >= behind) return;
        const auto key = [&](std::int64_t n) {  // the last part may have fewer
          const std::int64_t row = first + n < behind ? first + n : behind - 1;
          return k + (head / group * rows + row) * head_dim;
        };
        float sums[keys][chunk] = {};
        // Positions increase: where the last query is before all keys, nothing is to be multiplied.
        const std::int64_t end = begin + chunk < queries_of_group ? begin + chunk : queries_of_group;
        const std::int64_t depth = positions(first) <= in.q_position(first_query + end - 1) ? head_dim : 0;
        for (std::int64_t c = 0; c < depth; c += width) {
          Pack<width> of_keys[keys];
          for (int n = 0; n < keys; ++n) of_keys[n] = load<width>(key(n) + c);
          for (int e = 0; e < width; ++e) {
            const Pack<chunk> of_queries =
                load<chunk>(&queries(head, c + e, tile.group * places_of_group + begin));
            for (int n = 0; n < keys; ++n)
              for (int j = 0; j < chunk; ++j)
                sums[n][j] = Kokkos::fma(of_queries[j], of_keys[n][e], sums[n][j]);
          }
        }
        for (int n = 0; n < keys; ++n) {
          const std::int64_t row = first + n;
          if (row >= behind) break;
          const std::int64_t position = positions(row);
          for (int j = 0; j < chunk; ++j) {
            if (begin + j >= queries_of_group) break;
            const bool seen = in.sees(head / heads_of_sequence, first_query + begin + j, position);
            scores(head, row, begin + j) = seen ? sums[n][j] : -Kokkos::Experimental::infinity_v<float>;
          }
        }
      });
}

/// Raises maxima (heads · groups · queries) to the largest of scores (heads, keys, queries of a group).
template <class Exec>
void raise_maxima(const Exec& exec, const KeyTiles& tiles, std::int64_t groups,
                  const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima) {
  const auto rows = static_cast<std::int64_t>(scores.extent(1)),
             queries = static_cast<std::int64_t>(scores.extent(2)),
             heads = static_cast<std::int64_t>(scores.extent(0));
  Kokkos::parallel_for(
      "annulus::attention::score_maxima", Kokkos::RangePolicy<Exec>(exec, 0, tiles.count * heads * queries),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / queries % heads, query = i % queries;
        const KeyTile tile = tiles.tile(i / queries / heads, rows);  // of a thread
        float highest = -Kokkos::Experimental::infinity_v<float>;
        for (std::int64_t row = tile.first; row < tile.first + tile.rows; ++row)
          highest = Kokkos::fmax(highest, scores(head, row, query));
        Kokkos::atomic_max(&maxima((head * groups + tile.group) * queries + query), highest);
      });
}

}  // namespace scores_detail

/// causal_scores on any execution space: fp32 products, scaled queries.
template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima) {
  using namespace scores_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const auto head_dim = static_cast<std::int64_t>(in.q.extent(3));
  const auto transposed = Owned<Array3<float, Exec>>::uninitialized(
      exec, MemoryCategory::workspace, "annulus::attention::transposed_queries", scores.extent(0), head_dim,
      in.groups * round_up(in.queries_of_group(), std::int64_t{chunk}));
  transpose<Exec, T>(exec, in.q, in.scale, in.groups, *transposed);
  with_pack_width<Exec, T>(in_packs<Exec, T>(head_dim, in.k),
                           [&](auto width) { score<width(), Exec, T>(exec, in, *transposed, scores); });
  raise_maxima<Exec>(exec, in.all_tiles(), in.groups, scores, maxima);
}

}  // namespace annulus::attention::portable
