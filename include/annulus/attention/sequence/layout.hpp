#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <annulus/attention/sequence/position_map.hpp>

namespace annulus {

/// How a sequence is dealt out to the ranks of a context-parallel group.
///
/// - `contiguous`: rank r holds one interval.
/// - `zigzag`: 2·G chunks, rank r holds chunks r and 2·G−1−r, so that causal work is balanced (Megatron-CP).
/// - `striped`: rank r holds tokens r, r + G, … (Striped Attention, §3.2).
/// - `block-striped:B`: stripes of B tokens (MTraining, §3.2).
///
/// Any number of tokens goes on any number of ranks: nothing is padded, shards differ by at most one token
/// (contiguous, striped), two (zigzag) or B (block-striped), and a rank may own nothing.
class Layout {
 public:
  enum class Kind : std::uint8_t { contiguous, zigzag, striped, block_striped };

  Layout() = default;
  explicit Layout(Kind kind, std::int64_t stripe = 1);

  /// Reads "contiguous", "zigzag", "striped" or "block-striped:B". Throws Error naming `field`.
  static Layout parse(std::string_view text, std::string_view field = "layout");

  /// What parse reads.
  std::string to_string() const;

  Kind kind() const { return kind_; }

  /// Tokens of a stripe (striped: 1).
  std::int64_t stripe() const { return stripe_; }

  /// Global positions of the rows that `rank` of `ranks` holds of a sequence of `tokens` tokens.
  PositionMap shard(std::int64_t tokens, int ranks, int rank) const;

  /// Global positions, in increasing order, of all rows that the ranks first … last − 1 hold together: that
  /// neighbours' shards make a position map again is what lets plans ask of many ranks at once what a mask
  /// leaves them. At least one rank.
  PositionMap shards(std::int64_t tokens, int ranks, int first, int last) const;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  Kind kind_ = Kind::contiguous;
  std::int64_t stripe_ = 1;
};

}  // namespace annulus
