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

/// transposed (heads, head_dim, whole chunks) = scale · q (heads, queries, head_dim), and zeros behind them.
template <class Exec, class T>
void transpose(const Exec& exec, const Array4<const T, Exec>& q, float scale,
               const Array3<float, Exec>& transposed) {
  const auto queries = static_cast<std::int64_t>(q.extent(2)), width = static_cast<std::int64_t>(q.extent(3)),
             places = static_cast<std::int64_t>(transposed.extent(2));
  const T* const from = q.data();
  Kokkos::parallel_for(
      "annulus::attention::transpose_queries", Kokkos::RangePolicy<Exec>(exec, 0, transposed.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / places / width, c = i / places % width, query = i % places;
        const bool some = query < queries;
        transposed(head, c, query) =
            some ? scale * static_cast<float>(from[(head * queries + query) * width + c]) : 0.0f;
      });
}

template <int width, class Exec, class T>
void score(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& queries,
           const Array3<float, Exec>& scores) {
  constexpr std::int64_t keys = 4;  // of a thread: queries are read once for all of them
  const auto heads = static_cast<std::int64_t>(scores.extent(0)),
             rows = static_cast<std::int64_t>(scores.extent(1)),
             all_queries = static_cast<std::int64_t>(scores.extent(2)),
             head_dim = static_cast<std::int64_t>(in.k.extent(3));
  const auto group = static_cast<std::int64_t>(in.q.extent(1) / in.k.extent(1));
  const std::int64_t chunks = ceil_divide(all_queries, chunk), parts = ceil_divide(rows, keys);
  const T* const k = in.k.data();
  const PositionMap positions = in.k_positions;
  Kokkos::parallel_for(
      "annulus::attention::scores", Kokkos::RangePolicy<Exec>(exec, 0, heads * chunks * parts),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / parts / chunks, begin = i / parts % chunks * chunk;
        const std::int64_t first = i % parts * keys;
        const auto key = [&](std::int64_t n) {  // the last part may have fewer
          const std::int64_t row = first + n < rows ? first + n : rows - 1;
          return k + (head / group * rows + row) * head_dim;
        };
        float sums[keys][chunk] = {};
        // Positions increase: where the last query is before all keys, nothing is to be multiplied.
        const std::int64_t end = begin + chunk < all_queries ? begin + chunk : all_queries;
        const std::int64_t depth = positions(first) <= in.q_position(end - 1) ? head_dim : 0;
        for (std::int64_t c = 0; c < depth; c += width) {
          Pack<width> of_keys[keys];
          for (int n = 0; n < keys; ++n) of_keys[n] = load<width>(key(n) + c);
          for (int e = 0; e < width; ++e) {
            const Pack<chunk> of_queries = load<chunk>(&queries(head, c + e, begin));
            for (int n = 0; n < keys; ++n)
              for (int j = 0; j < chunk; ++j)
                sums[n][j] = Kokkos::fma(of_queries[j], of_keys[n][e], sums[n][j]);
          }
        }
        for (int n = 0; n < keys; ++n) {
          const std::int64_t row = first + n;
          if (row >= rows) break;
          const std::int64_t position = positions(row);
          for (int j = 0; j < chunk; ++j) {
            if (begin + j >= all_queries) break;
            const bool seen = position <= in.q_position(begin + j);
            scores(head, row, begin + j) = seen ? sums[n][j] : -Kokkos::Experimental::infinity_v<float>;
          }
        }
      });
}

/// Raises maxima (heads · queries) to the largest of scores (heads, keys, queries).
template <class Exec>
void raise_maxima(const Exec& exec, const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima) {
  constexpr std::int64_t keys = 128;  // of a thread
  const auto rows = static_cast<std::int64_t>(scores.extent(1)),
             queries = static_cast<std::int64_t>(scores.extent(2)),
             all_queries = static_cast<std::int64_t>(maxima.extent(0));
  Kokkos::parallel_for(
      "annulus::attention::score_maxima",
      Kokkos::RangePolicy<Exec>(exec, 0, ceil_divide(rows, keys) * all_queries),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i % all_queries / queries, query = i % queries;
        const std::int64_t first = i / all_queries * keys, end = first + keys < rows ? first + keys : rows;
        float highest = -Kokkos::Experimental::infinity_v<float>;
        for (std::int64_t row = first; row < end; ++row)
          highest = Kokkos::fmax(highest, scores(head, row, query));
        Kokkos::atomic_max(&maxima(i % all_queries), highest);
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
      round_up(static_cast<std::int64_t>(in.q.extent(2)), std::int64_t{chunk}));
  transpose<Exec, T>(exec, in.q, in.scale, *transposed);
  with_pack_width<Exec, T>(in_packs<Exec, T>(head_dim, in.k),
                           [&](auto width) { score<width(), Exec, T>(exec, in, *transposed, scores); });
  raise_maxima<Exec>(exec, scores, maxima);
}

}  // namespace annulus::attention::portable
