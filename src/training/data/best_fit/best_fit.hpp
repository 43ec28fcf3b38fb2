#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace annulus::data {

/// Sequences that are filled with the whole documents of one shard, by best fit, the longest first
/// (best-fit decreasing; Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3): no
/// document that fits into a sequence is cut. Of a longer one as many sequences as it fills are its alone,
/// and what is left is packed as a document.
class BestFit {
 public:
  /// A document, or what is packed of one.
  struct Piece {
    std::int64_t begin = 0, length = 0;  ///< tokens of the shard
  };

  /// `documents` are start offsets in a shard of so many tokens.
  BestFit(std::span<const std::int64_t> documents, std::int64_t tokens, std::int64_t sequence_tokens);

  /// Sequences, in the order in which their first documents stand in the shard.
  std::int64_t sequences() const { return std::ssize(ends_); }
  /// What sequence `index` holds, piece behind piece from its start; behind them is a gap.
  std::span<const Piece> pieces(std::int64_t index) const;

 private:
  std::vector<Piece> pieces_;       // sequence by sequence
  std::vector<std::int64_t> ends_;  // of the pieces of each sequence
};

}  // namespace annulus::data
