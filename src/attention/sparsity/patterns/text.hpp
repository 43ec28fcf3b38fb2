#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"

namespace annulus::sparsity {

/// A part of all patterns: documents shorter than so many tokens take all their pairs.
inline constexpr std::string_view dense_below_key = "dense-below";

/// Reads the text of a pattern, NAME or NAME:KEY=VALUE,…, part by part; knows what to name in errors.
class PartReader {
 public:
  /// `text` and `field` outlive the reader.
  PartReader(std::string_view text, std::string_view field)
      : text_(text), field_(field), name_(text.substr(0, text.find(':'))) {
    more_ = name_.size() < text.size();
    if (more_) rest_ = text.substr(name_.size() + 1);
  }

  std::string_view name() const { return name_; }

  /// A key of a pattern, and what reads its value.
  struct Key {
    std::string_view name;
    std::function<void()> read;
  };
  /// Reads every part: `known` and dense-below, which all patterns have. Throws Error for keys that are
  /// unknown or stand twice.
  void read(std::initializer_list<Key> known, std::int64_t& dense_below) {
    while (next()) {
      if (const auto* const key = std::ranges::find(known, key_, &Key::name); key != known.end())
        key->read();
      else if (key_ == dense_below_key)
        dense_below = whole(0);
      else
        reject_unknown(known);
    }
  }

  /// Whether a part so far had the key.
  bool seen(std::string_view key) const { return seen_.contains(key); }

  /// The value as a whole number. Throws Error for anything else and for numbers below `least`, as the other
  /// functions do for what they do not expect.
  std::int64_t whole(std::int64_t least) const {
    const auto value = parse_number<std::int64_t>(value_);
    if (!value || *value < least || *value > most_tokens)
      reject(fmt::format("needs a whole number from {} to {}", least, most_tokens));
    return *value;
  }
  /// The value as a whole number of blocks of block_tokens, in tokens, up to `most`.
  std::int64_t tokens_of_blocks(std::int64_t most = most_tokens) const {
    const auto tokens = parse_number<std::int64_t>(value_);
    if (!tokens || *tokens < block_tokens || *tokens > most || *tokens % block_tokens != 0)
      reject(fmt::format("needs a multiple of {} from {} up to {}", block_tokens, block_tokens, most));
    return *tokens;
  }
  /// The value as a share more than 0 and at most 1, of `whole`; `example` is a part that is right.
  double share(std::string_view whole, std::string_view example) const {
    const auto share = parse_number<double>(value_);
    if (!share || !(*share > 0 && *share <= 1))
      reject(fmt::format("needs a share of {}, more than 0 and at most 1: write for instance {}", whole,
                         example));
    return *share;
  }
  /// Whether the value is the second one of two words, which say `meaning`.
  bool is_second(std::string_view first, std::string_view second, std::string_view meaning) const {
    if (value_ != first && value_ != second)
      reject(fmt::format("needs {}: write {}={} or {}={}", meaning, key_, first, key_, second));
    return value_ == second;
  }
  /// The value of `select`: whether each query head selects for itself.
  bool selects_for_query_heads() const {
    return is_second("kv-heads", "heads", "whose query heads select together");
  }

  /// Throws Error naming the part.
  [[noreturn]] void reject(std::string_view why) const {
    fail("{} = '{}': the part '{}' {}", field_, text_, part_, why);
  }
  /// Throws Error naming the whole text.
  [[noreturn]] void reject_text(std::string_view why) const { fail("{} = '{}': {}", field_, text_, why); }

 private:
  static constexpr std::int64_t most_tokens = std::int64_t{1} << 31;  // of a sequence

  [[noreturn]] void reject_unknown(std::initializer_list<Key> known) const {
    std::vector<std::string_view> names;
    for (const Key& key : known) names.push_back(key.name);
    reject(fmt::format("is unknown; known are {} and {}", fmt::join(names, ", "), dense_below_key));
  }

  /// Goes to the next part; false behind the last one.
  bool next() {
    if (!more_) return false;
    const std::size_t comma = rest_.find(',');
    part_ = rest_.substr(0, comma);
    more_ = comma != std::string_view::npos;
    rest_.remove_prefix(more_ ? comma + 1 : rest_.size());
    const std::size_t equals = part_.find('=');
    key_ = part_.substr(0, equals);
    value_ = equals == std::string_view::npos ? std::string_view() : part_.substr(equals + 1);
    if (!seen_.insert(std::string(key_)).second) reject("stands twice: give it once");
    return true;
  }

  std::string_view text_, field_, name_, rest_, part_, key_, value_;
  bool more_ = false;
  std::set<std::string, std::less<>> seen_;
};

/// dense-below as text: only where there is such a number.
inline std::string dense_below_text(std::int64_t tokens) {
  return tokens == 0 ? std::string() : fmt::format(",{}={}", dense_below_key, tokens);
}

/// `select` as text: the reverse of PartReader::selects_for_query_heads.
inline std::string_view select_text(bool of_query_heads) {
  return of_query_heads ? "heads" : "kv-heads";
}

}  // namespace annulus::sparsity
