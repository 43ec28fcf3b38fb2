#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace annulus::sparsity {

/// Tokens of a block: slashes are pooled to it, block lists are of it (MTraining, section 4.1).
inline constexpr std::int64_t block_tokens = 64;

/// One of the patterns of src/attention/sparsity/patterns/table.hpp with its numbers.
struct AnyPattern;

/// A pattern of dynamic sparse attention: which pairs each layer selects in each forward pass.
///
/// Text form: the name of the pattern, and behind it any of its parts, for instance
/// "vertical-slash:recall=0.9,window=64". docs/sparsity.md has the patterns and their parts.
class PatternOptions {
 public:
  PatternOptions();  ///< "vertical-slash"

  /// Reads the text form. Throws Error naming `field`, the part of the text and the remedy.
  static PatternOptions parse(std::string_view text, std::string_view field = "sparsity");

  /// What parse reads, every value in it.
  std::string to_string() const;

  /// Throws Error naming `field` where a sequence of `tokens` tokens, or a sequence of several documents
  /// (`packed`), has not what the options ask for.
  void check(std::int64_t tokens, std::string_view field = "sparsity", bool packed = false) const;

  const AnyPattern& pattern() const { return *pattern_; }

  /// Compares the patterns and their numbers.
  friend bool operator==(const PatternOptions& a, const PatternOptions& b);

 private:
  explicit PatternOptions(std::shared_ptr<const AnyPattern> pattern);
  std::shared_ptr<const AnyPattern> pattern_;  // not null
};

}  // namespace annulus::sparsity
