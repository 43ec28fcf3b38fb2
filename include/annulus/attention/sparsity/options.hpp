#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace annulus::sparsity {

/// Tokens of a block: slashes are pooled to it, block lists are of it (MTraining, section 4.1).
inline constexpr std::int64_t block_tokens = 64;

/// Which pairs a vertical-slash selection takes (MTraining, section 4.1, Algorithm 1; docs/sparsity.md).
///
/// Text form, "vertical-slash" with any of these behind it, for instance
/// "vertical-slash:recall=0.9,window=64":
///   recall=R        verticals and slashes each hold the share R of the window's mass, 0 < R ≤ 1 (0.9)
///   budget=separate|joint   joint: verticals and slashes together hold it, each pair counted once (separate)
///   verticals=N,slashes=N   fixed numbers of both, in the place of `recall`
///   window=W        the last W queries observe (64)
///   sinks=N         the first N tokens are verticals, whatever their mass (0)
///   local=N         slashes hold every key closer than N tokens (1: a query sees its own block)
///   select=kv-heads|heads   one selection for the query heads of a kv head together, or for each (kv-heads)
struct PatternOptions {
  static constexpr double default_recall = 0.9;

  double recall = default_recall;  ///< 0 with fixed budgets
  bool joint = false;              ///< budget=joint
  std::int64_t verticals = 0;      ///< columns of a selection, sinks among them; with recall 0
  std::int64_t slashes = 0;        ///< block diagonals, the local ones among them; with recall 0
  std::int64_t window = 64;        ///< queries
  std::int64_t sinks = 0;          ///< tokens
  std::int64_t local = 1;          ///< tokens
  bool of_query_heads = false;     ///< select=heads

  /// Reads the text form. Throws Error naming `field`, the part of the text and the remedy.
  static PatternOptions parse(std::string_view text, std::string_view field = "sparsity");

  /// What parse reads, every value in it.
  std::string to_string() const;

  bool fixed() const { return recall == 0; }
  /// The first block distances, which slashes hold whatever their mass.
  std::int64_t local_slashes() const;

  /// Throws Error naming `field` where a sequence of `tokens` tokens has not what the options ask for.
  void check(std::int64_t tokens, std::string_view field = "sparsity") const;

  friend bool operator==(const PatternOptions&, const PatternOptions&) = default;
};

}  // namespace annulus::sparsity
