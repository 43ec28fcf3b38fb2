#include <annulus/training/model/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "base/parse_number.hpp"

namespace annulus::model {

namespace {

constexpr std::string_view blanks = " \t";

/// The text up to `separator`, or all of it, which is taken off `text`.
std::string_view take_until(std::string_view& text, std::string_view separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + separator.size());
  return part;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

/// One entry of a pattern.
class Entry {
 public:
  explicit Entry(std::string_view text) : text_(without_blanks(text)) {
    std::string_view rest = text_, mask = next_word(rest);
    if (mask.find('*') != mask.npos) {
      const auto number = parse_number<int>(take_until(mask, "*"));
      if (!number || *number < 1)
        reject("begins with a number of layers that is none: write 5*window:1023,0");
      count_ = *number;
    }
    read_mask(mask);
    while (!rest.empty()) read_option(next_word(rest));
    if (!kind_.rotated && (kind_.rope_theta != 0 || !kind_.scaled || kind_.rope_fraction != 0))
      reject("has no rotary positions (rope=none) and says what they are: leave out the one or the other");
  }

  int count() const { return count_; }
  const LayerKind& kind() const { return kind_; }

 private:
  static std::string_view next_word(std::string_view& text) {
    text = without_blanks(text);
    const std::size_t end = std::min(text.find_first_of(blanks), text.size());
    const std::string_view word = text.substr(0, end);
    text = without_blanks(text.substr(end));
    return word;
  }

  void read_mask(std::string_view mask) {
    if (mask.empty())
      reject("has no mask: write causal or window:L,0, with a comma and a blank between two entries");
    const detail::MaskTerms terms = detail::parse_mask_terms(mask, "model.pattern");
    const bool other = terms.full || terms.dilated || terms.documents || terms.blocks,
               behind = terms.window && terms.window->right > 0 && !terms.causal;
    if (other || behind)
      reject(
          "has a mask that layers of a pattern cannot have: give causal or window:L,0; "
          "documents stand in attention.mask");
    kind_.mask = terms.window ? fmt::format("window:{},0", terms.window->left) : "causal";
  }

  void read_option(std::string_view word) {
    std::string_view value = word;
    const std::string_view name = take_until(value, "=");
    if (name == "theta") {
      kind_.rope_theta = number<float>(value);
      if (!(kind_.rope_theta > 1))
        reject("has a base of rotary positions that is none: give a number above 1, as in theta=10000");
    } else if (name == "fraction") {
      kind_.rope_fraction = number<double>(value);
      if (!(kind_.rope_fraction > 0 && kind_.rope_fraction <= 1))
        reject("turns no part of a head: give a number above 0 and at most 1, as in fraction=0.75");
    } else if (name == "query_scale") {
      kind_.query_scale = number<float>(value);
      if (!(kind_.query_scale > 0))
        reject("has no scale of queries: give a positive number, as in query_scale=64");
    } else if (name == "soft_cap") {
      kind_.soft_cap = number<float>(value);
      if (!(kind_.soft_cap > 0)) reject("has no cap of scores: give a positive number, as in soft_cap=50");
    } else if (word == "sinks") {
      kind_.sinks = true;
    } else if (word == "scaling=none") {
      kind_.scaled = false;
    } else if (word == "rope=none") {
      kind_.rotated = false;
    } else {
      reject(
          fmt::format("has '{}', which is not known: behind the mask may stand theta=BASE, fraction=PART, "
                      "scaling=none, rope=none, query_scale=NUMBER, soft_cap=CAP or sinks",
                      word));
    }
  }

  /// −1 where it is no finite number.
  template <class T>
  static T number(std::string_view text) {
    const auto value = parse_number<T>(text);
    return value && std::isfinite(*value) ? *value : T(-1);
  }

  [[noreturn]] void reject(std::string_view why) const {
    fail("model.pattern: the entry '{}' {}", text_, why);
  }

  std::string_view text_;
  int count_ = 1;
  LayerKind kind_;
};

std::string entry_of(const LayerKind& kind, std::ptrdiff_t count) {
  std::string text = count > 1 ? fmt::format("{}*", count) : "";
  text += kind.mask;
  if (!kind.rotated) text += " rope=none";
  if (kind.rope_theta > 0) text += fmt::format(" theta={}", kind.rope_theta);
  if (kind.rope_fraction > 0) text += fmt::format(" fraction={}", kind.rope_fraction);
  if (!kind.scaled) text += " scaling=none";
  if (kind.query_scale > 0) text += fmt::format(" query_scale={}", kind.query_scale);
  if (kind.soft_cap > 0) text += fmt::format(" soft_cap={}", kind.soft_cap);
  if (kind.sinks) text += " sinks";
  return text;
}

}  // namespace

std::vector<LayerKind> layer_kinds(std::span<const std::string> pattern, int layers) {
  require(layers <= most_layers, "model.layers = {}: at most {} are supported", layers, most_layers);
  const auto wanted = static_cast<std::size_t>(layers);
  if (pattern.empty()) return std::vector<LayerKind>(wanted);
  std::vector<LayerKind> kinds;
  for (const std::string& text : pattern)
    for (std::string_view rest = text;;) {
      const bool more = rest.find(", ") != rest.npos;
      const Entry entry(take_until(rest, ", "));
      for (int i = 0; i < entry.count() && kinds.size() < wanted; ++i) kinds.push_back(entry.kind());
      if (!more) break;
    }
  const std::size_t period = kinds.size();
  kinds.reserve(wanted);
  while (kinds.size() < wanted) kinds.push_back(kinds[kinds.size() - period]);
  return kinds;
}

std::vector<std::string> pattern_of(std::span<const LayerKind> kinds) {
  std::size_t period = 1;
  while (period < kinds.size() &&
         !std::ranges::equal(kinds.subspan(period), kinds.first(kinds.size() - period)))
    ++period;
  kinds = kinds.first(std::min(period, kinds.size()));
  std::string text;
  while (!kinds.empty()) {
    if (kinds.front().mask.empty()) return {};
    const auto next =
        std::ranges::find_if(kinds, [&](const LayerKind& kind) { return kind != kinds.front(); });
    text += (text.empty() ? "" : ", ") + entry_of(kinds.front(), next - kinds.begin());
    kinds = kinds.subspan(static_cast<std::size_t>(next - kinds.begin()));
  }
  return {text};
}

}  // namespace annulus::model
