#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <cmath>
#include <cstdint>

#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/scores.hpp"
#include "attention/sparsity/document_spans.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"

/// Scores of tiles of stride × stride pairs, and the masses of their softmax in blocks (XAttention, Algorithm
/// 1). Sums over tiles are of 64-bit integers, so that nobody's order matters.
namespace annulus::sparsity {

/// Tiles of queries, those of some block rows, and all tiles of keys up to the last of these.
///
/// The score of the query tile t and the key tile c < t is the sum along the tile's antidiagonal, over o = 0
/// … stride − 1, of q(t · stride + o) · k(c · stride + stride − 1 − o), times scale / stride; queries and
/// keys of other documents than that of the block row's first token, and those behind the end of the
/// sequence, count as zeros. Tiles of keys without any of the document have −∞. In the tile of the diagonal
/// it is the mean of those pairs of the antidiagonal that are causal and in the document, times scale; −∞
/// where none is. Products and sums are of fp32, o by o and channel by channel (tensor cores sum as they do):
/// the same wherever the rows lie.
template <class Exec, class T>
struct TileOperands {
  Array4<const T, Exec> q;  ///< (1, heads, block rows · tiles of a block · stride, head_dim)
  Array4<const T, Exec> k;  ///< (1, 1, key tiles · stride, head_dim), the rows of each tile in reverse order
  /// `k` with zeros for keys that the document of their tile's last token has not. None (no data): `k`.
  Array4<const T, Exec> k_of_later = {};
  Array1<const std::int64_t, Exec> block_rows;  ///< increasing
  std::int64_t stride = 16, tiles_of_block = 8;
  std::int64_t tokens = 0;  ///< of the sequence
  float scale = 1.0f;
  DocumentSpans spans = {};
  std::int64_t sequence = 0;

  std::int64_t heads() const { return static_cast<std::int64_t>(q.extent(1)); }
  std::int64_t rows() const { return static_cast<std::int64_t>(block_rows.extent(0)); }
  std::int64_t query_tiles() const { return rows() * tiles_of_block; }
  std::int64_t key_tiles() const { return static_cast<std::int64_t>(k.extent(2)) / stride; }
  /// Blocks of keys, the last one perhaps cut.
  std::int64_t blocks() const { return ceil_divide(key_tiles(), tiles_of_block); }
  /// The i-th of the query tiles.
  KOKKOS_FUNCTION std::int64_t tile(std::int64_t i) const {
    return block_rows(i / tiles_of_block) * tiles_of_block + i % tiles_of_block;
  }
  /// The document of the i-th of the query tiles.
  KOKKOS_FUNCTION DocumentSpan document(std::int64_t i) const {
    return spans.of(sequence, block_rows(i / tiles_of_block) * tiles_of_block * stride);
  }
};

/// Scores of each query tile, and the largest of each, (heads · query tiles).
template <class Exec>
struct TileScores {
  Owned<Array3<float, Exec>> scores;  ///< (heads, key tiles, query tiles), −∞ behind the diagonal
  Owned<Array1<float, Exec>> maxima;
};

namespace tile_scores_detail {  // named: device compilers want lambdas and their captures to have linkage

/// positions (2, query tiles): the last key tile but that of the diagonal, and the first one of the document.
template <class Exec, class T>
void list_positions(const Exec& exec, const TileOperands<Exec, T>& in,
                    const Array2<std::int64_t, Exec>& positions) {
  Kokkos::parallel_for(
      "annulus::sparsity::tile_positions", Kokkos::RangePolicy<Exec>(exec, 0, in.query_tiles()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        positions(0, i) = in.tile(i) - 1;
        positions(1, i) = in.document(i).begin / in.stride;
      });
}

/// The scores of the diagonal's tiles.
template <class Exec, class T>
void score_diagonal(const Exec& exec, const TileOperands<Exec, T>& in, const Array3<float, Exec>& scores,
                    const Array1<float, Exec>& maxima) {
  constexpr int pack = 8;  // divides every head dimension
  const std::int64_t queries = in.query_tiles(), stride = in.stride,
                     width = static_cast<std::int64_t>(in.q.extent(3)), all = queries * stride * width;
  Kokkos::parallel_for(
      "annulus::sparsity::diagonal_scores", Kokkos::RangePolicy<Exec>(exec, 0, in.heads() * queries),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / queries, query = i % queries, tile = in.tile(query),
                           behind = in.document(query).end;
        if (tile * stride >= behind) return;  // behind the end: nobody reads it
        // Offset o of the queries meets stride − 1 − o of the keys, which is at most o from here on.
        const std::int64_t first = stride / 2, rest = behind - tile * stride,
                           end = rest < stride ? rest : stride;
        float score = -Kokkos::Experimental::infinity_v<float>;
        if (first < end) {
          const T* const q = in.q.data() + head * all + query * stride * width;
          const T* const k = in.k.data() + tile * stride * width;
          float sum = 0;
          for (std::int64_t c = first * width; c < end * width; c += pack) {
            const Pack<pack> x = load<pack>(q + c), y = load<pack>(k + c);
            for (int e = 0; e < pack; ++e) sum = Kokkos::fma(x[e], y[e], sum);
          }
          score = in.scale / static_cast<float>(end - first) * sum;
        }
        scores(head, tile, query) = score;
        maxima(i) = Kokkos::fmax(maxima(i), score);
      });
}

/// exp(score − maximum), 0 where there is nothing to compare.
KOKKOS_INLINE_FUNCTION double weight(float score, float maximum) {
  const double weight = Kokkos::exp(static_cast<double>(score) - static_cast<double>(maximum));
  return weight <= 1 ? weight : 0;  // a NaN is no weight
}

KOKKOS_INLINE_FUNCTION std::int64_t in_units(double weight, double unit) {
  return static_cast<std::int64_t>(weight * unit);
}

/// sums(i) += the weights of tile i of the queries, in units.
template <class Exec>
void add_weights(const Exec& exec, const Array3<float, Exec>& scores, const Array1<float, Exec>& maxima,
                 double unit, const Array1<std::int64_t, Exec>& sums) {
  constexpr std::int64_t keys = 128;  // of a thread
  const auto rows = static_cast<std::int64_t>(scores.extent(1)),
             queries = static_cast<std::int64_t>(scores.extent(2)),
             all = static_cast<std::int64_t>(sums.extent(0));
  Kokkos::parallel_for(
      "annulus::sparsity::tile_sums", Kokkos::RangePolicy<Exec>(exec, 0, ceil_divide(rows, keys) * all),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t place = i % all, head = place / queries, query = place % queries;
        const std::int64_t first = i / all * keys, end = first + keys < rows ? first + keys : rows;
        std::int64_t sum = 0;
        for (std::int64_t row = first; row < end; ++row)
          sum += in_units(weight(scores(head, row, query), maxima(place)), unit);
        if (sum > 0) Kokkos::atomic_add(&sums(place), sum);
      });
}

/// masses (lists · block rows, blocks) by block distance: those of the probabilities of the
/// tiles of a block, in units.
template <class Exec, class T>
void add_up(const Exec& exec, const TileOperands<Exec, T>& in, const TileScores<Exec>& of,
            const Array1<std::int64_t, Exec>& sums, double unit_of_sums, double unit,
            const Array2<std::int64_t, Exec>& masses) {
  const std::int64_t rows = in.rows(), queries = in.query_tiles(), per = in.tiles_of_block,
                     key_tiles = in.key_tiles(), blocks = static_cast<std::int64_t>(masses.extent(1)),
                     heads_of_list = in.heads() * rows / static_cast<std::int64_t>(masses.extent(0));
  const Array3<float, Exec> scores = *of.scores;
  const Array1<float, Exec> maxima = *of.maxima;
  Kokkos::parallel_for(
      "annulus::sparsity::block_masses", Kokkos::RangePolicy<Exec>(exec, 0, masses.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / blocks / rows, row = i / blocks % rows, distance = i % blocks;
        const std::int64_t first = (in.block_rows(row) - distance) * per,
                           end = first + per < key_tiles ? first + per : key_tiles;
        std::int64_t mass = 0;
        for (std::int64_t head = list * heads_of_list; first >= 0 && head < (list + 1) * heads_of_list;
             ++head) {
          for (std::int64_t query = row * per; query < (row + 1) * per; ++query) {
            const std::int64_t place = head * queries + query;
            if (in.tile(query) * in.stride >= in.document(query).end || sums(place) == 0) continue;
            const double share = unit_of_sums / static_cast<double>(sums(place));
            for (std::int64_t key = first; key < end; ++key)
              mass += in_units(weight(scores(head, key, query), maxima(place)) * share, unit);
          }
        }
        masses(i / blocks, distance) = mass;
      });
}

}  // namespace tile_scores_detail

/// The scores of all tiles up to the diagonal. Those of tiles behind the end of the sequence have no meaning.
template <class Exec, class T>
TileScores<Exec> tile_scores(const Exec& exec, const TileOperands<Exec, T>& in) {
  using namespace tile_scores_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  constexpr auto workspace = MemoryCategory::workspace;
  const std::int64_t queries = in.query_tiles(), keys = in.key_tiles(),
                     depth = in.stride * static_cast<std::int64_t>(in.q.extent(3));
  TileScores<Exec> made{Owned<Array3<float, Exec>>::uninitialized(
                            exec, workspace, "annulus::sparsity::tile_scores", in.heads(), keys, queries),
                        Owned<Array1<float, Exec>>::uninitialized(
                            exec, workspace, "annulus::sparsity::tile_maxima", in.heads() * queries)};
  Kokkos::deep_copy(exec, *made.maxima, -Kokkos::Experimental::infinity_v<float>);
  const auto positions = Owned<Array2<std::int64_t, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::tile_positions", 2, queries);
  list_positions<Exec, T>(exec, in, *positions);
  const Array4<const T, Exec>& before = in.k_of_later.data() != nullptr ? in.k_of_later : in.k;
  // A tile's rows one after the other are one row: its product with another one is the antidiagonal's sum.
  attention::causal_scores<Exec, T>(exec,
                                    {.q = Array4<const T, Exec>(in.q.data(), 1, in.heads(), queries, depth),
                                     .k = Array4<const T, Exec>(before.data(), 1, 1, keys, depth),
                                     .k_positions = PositionMap{.block = keys, .count = keys},
                                     .scale = in.scale / static_cast<float>(in.stride),
                                     .q_listed = positions.view().data(),
                                     .q_first = positions.view().data() + queries},
                                    *made.scores, *made.maxima);
  score_diagonal<Exec, T>(exec, in, *made.scores, *made.maxima);
  return made;
}

/// How many units a probability of 1 has where `tiles` of them are summed to a mass below 2⁶²: 2⁴⁴ or fewer.
inline int exponent_of_tiles(std::int64_t tiles) {
  return std::min(44, 61 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tiles))));
}

/// Masses of blocks by block distance, (lists · block rows, blocks), each below 2⁶²: the sums of the softmax
/// of each tile of queries over the key tiles, in fp64 of the scores, rounded down to units before they are
/// summed over the tiles of a block and the query heads of a list.
template <class Exec, class T>
Owned<Array2<std::int64_t, Exec>> block_masses(const Exec& exec, const TileOperands<Exec, T>& in,
                                               const TileScores<Exec>& of, std::int64_t lists) {
  using namespace tile_scores_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  constexpr auto workspace = MemoryCategory::workspace;
  const double unit_of_sums = std::ldexp(1.0, exponent_of_tiles(in.key_tiles()));
  const auto sums = Owned<Array1<std::int64_t, Exec>>::zeroed(exec, workspace, "annulus::sparsity::tile_sums",
                                                              in.heads() * in.query_tiles());
  add_weights<Exec>(exec, *of.scores, *of.maxima, unit_of_sums, *sums);
  const std::int64_t tiles = in.heads() / lists * in.tiles_of_block;  // whose probabilities sum to 1 each
  auto masses = Owned<Array2<std::int64_t, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::block_masses", lists * in.rows(), in.blocks());
  add_up<Exec, T>(exec, in, of, *sums, unit_of_sums, std::ldexp(1.0, exponent_of_tiles(tiles)), *masses);
  return masses;
}

}  // namespace annulus::sparsity
