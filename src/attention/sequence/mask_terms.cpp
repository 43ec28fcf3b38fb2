#include "mask_terms.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/nearest.hpp"
#include "base/parse_number.hpp"

namespace annulus::detail {

namespace {

constexpr auto kinds =
    std::to_array<std::string_view>({"full", "causal", "window", "dilated", "documents", "blocks"});

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Reads one term after another into `terms`; knows what to name in errors.
class TermReader {
 public:
  TermReader(std::string_view text, std::string_view field) : text_(text), field_(field) {}

  MaskTerms read() {
    const auto parts = split(text_, '+');
    for (const std::string_view term : parts) read_term(term);
    if (terms_.full && parts.size() > 1) {
      term_ = "full";
      reject("does not join with other terms, because it masks nothing: leave it out");
    }
    return std::move(terms_);
  }

 private:
  void read_term(std::string_view term) {
    term_ = term;
    const std::size_t colon = term.find(':');
    const std::string_view kind = term.substr(0, colon);
    const bool bare = colon == std::string_view::npos;
    const std::string_view arguments = bare ? std::string_view() : term.substr(colon + 1);
    if (kind == "full" && bare) {
      once(terms_.full);
      terms_.full = true;
    } else if (kind == "causal" && bare) {
      once(terms_.causal);
      terms_.causal = true;
    } else if (kind == "window") {
      once(terms_.window.has_value());
      const auto [left, right] =
          pair(arguments, 0,
               "needs two whole numbers L,R ≥ 0 (keys from q−L to q+R): write for instance window:128,0");
      terms_.window = MaskTerms::WindowTerm{left, right};
    } else if (kind == "dilated") {
      once(terms_.dilated.has_value());
      const auto [width, distance] =
          pair(arguments, 1,
               "needs two whole numbers W,D ≥ 1 (W keys, D tokens apart): write for instance dilated:64,4");
      terms_.dilated = MaskTerms::DilatedTerm{width, distance};
    } else if (kind == "documents") {
      once(terms_.documents.has_value());
      terms_.documents = MaskTerms::DocumentsTerm{bare ? std::vector<std::int64_t>() : starts(arguments)};
    } else if (kind == "blocks") {
      once(terms_.blocks.has_value());
      terms_.blocks = blocks(arguments);
    } else if (terms_.blocks && colon == std::string_view::npos) {
      reject(
          "is no mask: use full, causal, window:L,R, dilated:W,D, documents:0,a,b,… or blocks:SIZE,FILE; "
          "if it belongs to the file's name, rename the file, because '+' joins terms");
    } else {
      reject(
          fmt::format("is no mask: {}use full, causal, window:L,R, dilated:W,D, "
                      "documents:0,a,b,… or blocks:SIZE,FILE",
                      did_you_mean(kind, kinds)));
    }
  }

  void once(bool present) const {
    if (present) reject("is the second one of its kind: write their intersection as one term");
  }

  std::pair<std::int64_t, std::int64_t> pair(std::string_view arguments, std::int64_t least,
                                             std::string_view remedy) const {
    const auto parts = split(arguments, ',');
    if (parts.size() != 2) reject(remedy);
    const auto first = parse_number<std::int64_t>(parts[0]), second = parse_number<std::int64_t>(parts[1]);
    if (!first || !second || *first < least || *second < least) reject(remedy);
    return {*first, *second};
  }

  std::vector<std::int64_t> starts(std::string_view arguments) const {
    std::vector<std::int64_t> values;
    for (const std::string_view part : split(arguments, ',')) {
      const auto value = parse_number<std::int64_t>(part);
      if (!value)
        reject(fmt::format("has the start offset '{}', which is no whole number: write documents:0,a,b,…",
                           part));
      values.push_back(*value);
    }
    return values;
  }

  MaskTerms::BlocksTerm blocks(std::string_view arguments) const {
    const std::size_t comma = arguments.find(',');
    const auto size = parse_number<std::int64_t>(arguments.substr(0, comma));
    if (comma == std::string_view::npos || comma + 1 == arguments.size() || !size || *size < 1)
      reject("needs the tokens of a block and a file: write for instance blocks:128,mask.txt");
    return {*size, std::string(arguments.substr(comma + 1))};
  }

  [[noreturn]] void reject(std::string_view why) const {
    fail("{} = '{}': the term '{}' {}", field_, abbreviated(text_), abbreviated(term_), why);
  }

  std::string_view text_, field_, term_;
  MaskTerms terms_;
};

}  // namespace

MaskTerms parse_mask_terms(std::string_view text, std::string_view field) {
  return TermReader(text, field).read();
}

std::string to_string(const MaskTerms& terms) {
  std::string text;
  const auto join = [&text](std::string_view term) {
    if (!text.empty()) text += '+';
    text += term;
  };
  if (terms.full) join("full");
  if (terms.causal) join("causal");
  if (terms.window) join(fmt::format("window:{},{}", terms.window->left, terms.window->right));
  if (terms.dilated) join(fmt::format("dilated:{},{}", terms.dilated->width, terms.dilated->distance));
  if (terms.documents) {
    std::string list;
    for (const std::int64_t start : terms.documents->starts)
      list += fmt::format("{}{}", list.empty() ? ':' : ',', start);
    join("documents" + list);
  }
  if (terms.blocks) join(fmt::format("blocks:{},{}", terms.blocks->size, terms.blocks->file));
  return text;
}

std::string outline(MaskTerms terms) {
  if (terms.documents) terms.documents->starts.clear();
  const auto blocks = std::exchange(terms.blocks, std::nullopt);
  std::string text = to_string(terms);
  if (blocks) text += fmt::format("{}blocks:{}", text.empty() ? "" : "+", blocks->size);
  return text;
}

std::string abbreviated(std::string_view text) {
  constexpr std::size_t most = 120;
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u)
    --end;  // not inside a UTF-8 character
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace annulus::detail
