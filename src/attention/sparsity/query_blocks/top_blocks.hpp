#pragma once

#include <algorithm>
#include <cstdint>

#include <annulus/base/division.hpp>

#include "attention/sparsity/document_spans.hpp"

namespace annulus::sparsity {

/// The blocks that each query of a document has: its own, those of the document's first tokens and of the
/// last ones before it, and of all others of the document before it those with the best scores. Blocks are
/// those of the sequence; what a document has of one is a block of it.
struct TopBlocks {
  std::int64_t tokens = 0;  ///< of the sequence
  std::int64_t block = 0;   ///< tokens
  std::int64_t best = 0;    ///< blocks of a query by their scores
  std::int64_t sinks = 0;   ///< tokens
  std::int64_t window = 1;  ///< tokens, the query itself among them
  std::int64_t dense_below =
      0;  ///< tokens of a document, of which queries have all blocks where it is shorter

  /// Blocks first … end − 1.
  struct Range {
    std::int64_t first, end;
    ANNULUS_FUNCTION std::int64_t count() const { return end - first; }
  };
  /// The blocks among which scores decide for the query at `position` of a document; the query has all others
  /// of the document up to its own.
  ANNULUS_FUNCTION Range candidates(const DocumentSpan& document, std::int64_t position) const {
    const std::int64_t first = document.begin / block;
    if (is_dense(document, dense_below)) return {first, first};
    const std::int64_t before = position < window ? 0 : (position + 1 - window) / block,
                       end = before > first ? before : first,
                       behind_sinks = sinks > 0 ? ceil_divide(document.begin + sinks, block) : first;
    return {behind_sinks < end ? behind_sinks : end, end};
  }

  std::int64_t blocks() const { return ceil_divide(tokens, block); }
  /// Words of 32 bits that a query has: one bit for each block.
  std::int64_t words() const { return ceil_divide(blocks(), std::int64_t{32}); }
  /// Rows are scored in multiples of so many: as many threads of a device go together.
  static constexpr std::int64_t tile_rows = 32;
  /// Rows that are scored at once, of `rows`, where a row has so many products: they have 256 MiB,
  /// where several tiles have: rows are threads, of which a GPU needs many.
  static std::int64_t rows_at_once(std::int64_t products, std::int64_t rows) {
    constexpr std::int64_t most = std::int64_t{1} << 26;
    const std::int64_t of_tile = tile_rows * std::max<std::int64_t>(1, products);
    return tile_rows * std::clamp<std::int64_t>(most / of_tile, 1,
                                                std::max<std::int64_t>(ceil_divide(rows, tile_rows), 1));
  }

  /// The share of the causal pairs that the queries have.
  double density() const {
    double pairs = 0;
    for (std::int64_t first = 0, end = 0; first < tokens; first = end) {  // queries with the same candidates
      const std::int64_t left = first + 1 - window;                       // of the window
      end = std::min(tokens, left < 1 ? window : first + block - left % block);
      const std::int64_t others = candidates({0, tokens}, first).count();
      const std::int64_t missing = others > best ? others - best : 0, queries = end - first;
      pairs += 0.5 * static_cast<double>(queries) * static_cast<double>(first + 1 + end) -
               static_cast<double>(queries) * static_cast<double>(missing * block);
    }
    const auto all = static_cast<double>(tokens);
    return pairs / (all * (all + 1) / 2);
  }
};

}  // namespace annulus::sparsity
