#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <annulus/attention/sequence/position_map.hpp>

namespace annulus {

class BalancedCut;
class Mask;
struct MaskedLayers;

/// How a sequence is dealt out to the ranks of a context-parallel group.
///
/// - `contiguous`: rank r holds one interval.
/// - `zigzag`: 2·G chunks, rank r holds chunks r and 2·G−1−r, so that causal work is balanced (Megatron-CP).
/// - `striped`: rank r holds tokens r, r + G, … (Striped Attention, §3.2).
/// - `block-striped:B`: stripes of B tokens (MTraining, §3.2).
/// - `balanced`: what a sequence's mask makes of it (for_mask): runs of rows such that all ranks have as many
/// rows
///   and as much work, and few documents are shared.
///
/// Any number of tokens goes on any number of ranks: nothing is padded, shards differ by at most one token
/// (contiguous, striped), two (zigzag) or B (block-striped), and a rank may own nothing. Shards of
/// `balanced` differ by at most one token.
class Layout {
 public:
  enum class Kind : std::uint8_t { contiguous, zigzag, striped, block_striped, balanced };

  Layout() = default;
  explicit Layout(Kind kind, std::int64_t stripe = 1);

  /// Reads "contiguous", "zigzag", "striped", "block-striped:B" or "balanced". Throws Error naming `field`.
  static Layout parse(std::string_view text, std::string_view field = "layout");

  /// What parse reads.
  std::string to_string() const;

  Kind kind() const { return kind_; }

  /// Tokens of a stripe (striped: 1).
  std::int64_t stripe() const { return stripe_; }

  /// The layout for sequences with this mask over `ranks` ranks: `balanced` is cut, whatever mask it was cut
  /// for before; the others stay as they are. Shards of `balanced` live as long as the layout or a copy of
  /// it. `ranks_per_node`: consecutive ranks between which documents are shared rather than with others; 0:
  /// all. Throws Error where the mask has a block list.
  Layout for_mask(const Mask& mask, int ranks, int ranks_per_node = 0) const;
  /// The layout for sequences that layers attend to under these masks of equal documents: `balanced` is cut
  /// for their pairs together, and for_mask leaves it so for each of them.
  Layout for_layers(std::span<const MaskedLayers> layers, int ranks, int ranks_per_node = 0) const;

  /// Whether shards are known: `balanced` must have been cut.
  bool has_shards() const { return kind_ != Kind::balanced || cut_ != nullptr; }

  /// Global positions of the rows that `rank` of `ranks` holds of a sequence of `tokens` tokens.
  PositionMap shard(std::int64_t tokens, int ranks, int rank) const;

  /// Global positions, in increasing order, of all rows that the ranks first … last − 1 hold together: that
  /// neighbours' shards make a position map again is what lets plans ask of many ranks at once what a mask
  /// leaves them. At least one rank.
  PositionMap shards(std::int64_t tokens, int ranks, int first, int last) const;

  /// What the shards of single ranks borrow; empty but for `balanced`.
  std::span<const RowRun> runs() const;
  /// Unmasked pairs of the queries of each shard, of one head, in all layers that the cut is for; empty but
  /// for `balanced`.
  std::span<const std::int64_t> cut_pairs() const;
  /// Hash of who has which rows; 0 but for `balanced`.
  std::uint64_t cut_fingerprint() const;

  friend bool operator==(const Layout& a, const Layout& b);

 private:
  Kind kind_ = Kind::contiguous;
  std::int64_t stripe_ = 1;
  std::shared_ptr<const BalancedCut> cut_;
};

}  // namespace annulus
