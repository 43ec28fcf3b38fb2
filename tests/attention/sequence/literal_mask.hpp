#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <annulus/attention/sequence/position_map.hpp>

#include "support/temporary_folder.hpp"

namespace annulus::test {

/// A mask as its text and, beside it, as the dense matrix that the text's definition spells out.
struct LiteralMask {
  std::string text;
  std::int64_t tokens = 0;
  std::vector<char> allowed;  ///< (tokens, tokens), query by key

  bool operator()(std::int64_t q, std::int64_t k) const {
    return allowed[static_cast<std::size_t>(q * tokens + k)] != 0;
  }
  /// Pairs of these positions that it allows.
  std::int64_t pairs(const PositionMap& q, const PositionMap& k) const {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < q.count; ++i)
      for (std::int64_t j = 0; j < k.count; ++j) sum += (*this)(q(i), k(j)) ? 1 : 0;
    return sum;
  }
};

/// Every kind of term and their joins over a sequence of `tokens` tokens. Documents, block lists (written
/// into `folder`) and some of the numbers are drawn from `random`.
std::vector<LiteralMask> literal_masks(std::int64_t tokens, std::mt19937& random,
                                       const TemporaryFolder& folder);

}  // namespace annulus::test
