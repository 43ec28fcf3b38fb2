#pragma once

#include <algorithm>
#include <cstdint>

#include <annulus/base/division.hpp>

namespace annulus::sparsity {

/// The blocks that each query of a sequence has: its own, those of the first tokens and of the last ones
/// before it, and of all others before it those with the best scores.
struct TopBlocks {
  std::int64_t tokens = 0;  ///< of the sequence
  std::int64_t block = 0;   ///< tokens
  std::int64_t best = 0;    ///< blocks of a query by their scores
  std::int64_t sinks = 0;   ///< tokens
  std::int64_t window = 1;  ///< tokens, the query itself among them

  /// Blocks first … end − 1.
  struct Range {
    std::int64_t first, end;
    ANNULUS_FUNCTION std::int64_t count() const { return end - first; }
  };
  /// Those among which scores decide, of the query at `position`; the query has all others up to its own.
  ANNULUS_FUNCTION Range candidates(std::int64_t position) const {
    const std::int64_t end = position < window ? 0 : (position + 1 - window) / block,
                       sink_blocks = ceil_divide(sinks, block);
    return {sink_blocks < end ? sink_blocks : end, end};
  }

  std::int64_t blocks() const { return ceil_divide(tokens, block); }
  /// Words of 32 bits that a query has: one bit for each block.
  std::int64_t words() const { return ceil_divide(blocks(), std::int64_t{32}); }
  /// Rows that are scored at once, of `rows`, where a row has so many products: they have 64 MiB, where
  /// several have.
  static std::int64_t rows_at_once(std::int64_t products, std::int64_t rows) {
    constexpr std::int64_t most = std::int64_t{1} << 24;
    return std::clamp<std::int64_t>(most / std::max<std::int64_t>(1, products), 1,
                                    std::max<std::int64_t>(rows, 1));
  }

  /// The share of the causal pairs that the queries have.
  double density() const {
    double pairs = 0;
    for (std::int64_t position = 0; position < tokens; ++position) {
      const std::int64_t others = candidates(position).count();
      const std::int64_t missing = others > best ? others - best : 0;
      pairs += static_cast<double>(position + 1 - missing * block);
    }
    const auto all = static_cast<double>(tokens);
    return pairs / (all * (all + 1) / 2);
  }
};

}  // namespace annulus::sparsity
