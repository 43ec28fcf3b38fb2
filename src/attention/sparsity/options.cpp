#include <annulus/attention/sparsity/options.hpp>

#include <fmt/format.h>

#include <set>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"

namespace annulus::sparsity {

namespace {

/// Reads the text; knows what to name in errors.
class OptionReader {
 public:
  OptionReader(std::string_view text, std::string_view field) : text_(text), field_(field) {}

  PatternOptions read() {
    const std::size_t colon = text_.find(':');
    const std::string_view pattern = text_.substr(0, colon);
    require(pattern == "vertical-slash",
            "{} = '{}': the pattern '{}' is unknown; known is vertical-slash, for instance "
            "vertical-slash:recall=0.9,window=64",
            field_, text_, pattern);
    if (colon != std::string_view::npos) {
      std::string_view rest = text_.substr(colon + 1);
      while (true) {
        const std::size_t comma = rest.find(',');
        read_part(rest.substr(0, comma));
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
      }
    }
    const bool verticals = seen_.contains("verticals"), slashes = seen_.contains("slashes");
    require(verticals == slashes, "{} = '{}': it fixes the {} but not the {}: give both, or recall alone",
            field_, text_, verticals ? "verticals" : "slashes", verticals ? "slashes" : "verticals");
    require(!verticals || !seen_.contains("recall"),
            "{} = '{}': it gives a recall and fixed numbers of verticals and slashes: give one of the two",
            field_, text_);
    require(
        !verticals || !options_.joint,
        "{} = '{}': budget=joint shares a recall, but the numbers of verticals and slashes are fixed: give "
        "a recall, or leave budget=joint out",
        field_, text_);
    if (verticals) options_.recall = 0;
    return options_;
  }

 private:
  void read_part(std::string_view part) {
    part_ = part;
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    value_ = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    if (!seen_.insert(std::string(key)).second) reject("stands twice: give it once");
    if (key == "recall") {
      const auto share = parse_number<double>(value_);
      if (!share || !(*share > 0 && *share <= 1))
        reject(
            "needs a share of the window's mass, more than 0 and at most 1: write for instance recall=0.9");
      options_.recall = *share;
    } else if (key == "budget") {
      if (value_ != "separate" && value_ != "joint")
        reject("needs who shares the recall: write budget=separate or budget=joint");
      options_.joint = value_ == "joint";
    } else if (key == "verticals") {
      options_.verticals = whole(0);
    } else if (key == "slashes") {
      options_.slashes = whole(0);
    } else if (key == "window") {
      options_.window = whole(1);
    } else if (key == "sinks") {
      options_.sinks = whole(0);
    } else if (key == "local") {
      options_.local = whole(0);
    } else if (key == "select") {
      if (value_ != "heads" && value_ != "kv-heads")
        reject("needs whose query heads select together: write select=kv-heads or select=heads");
      options_.of_query_heads = value_ == "heads";
    } else {
      reject("is unknown; known are recall, budget, verticals, slashes, window, sinks, local and select");
    }
  }

  std::int64_t whole(std::int64_t least) const {
    const auto value = parse_number<std::int64_t>(value_);
    constexpr std::int64_t most = std::int64_t{1} << 31;  // tokens of a sequence
    if (!value || *value < least || *value > most)
      reject(fmt::format("needs a whole number from {} to {}", least, most));
    return *value;
  }

  [[noreturn]] void reject(std::string_view why) const {
    fail("{} = '{}': the part '{}' {}", field_, text_, part_, why);
  }

  std::string_view text_, field_, part_, value_;
  std::set<std::string, std::less<>> seen_;
  PatternOptions options_;
};

}  // namespace

PatternOptions PatternOptions::parse(std::string_view text, std::string_view field) {
  return OptionReader(text, field).read();
}

std::string PatternOptions::to_string() const {
  const std::string budget = fixed() ? fmt::format("verticals={},slashes={}", verticals, slashes)
                                     : fmt::format("recall={}{}", recall, joint ? ",budget=joint" : "");
  return fmt::format("vertical-slash:{},window={},sinks={},local={},select={}", budget, window, sinks, local,
                     of_query_heads ? "heads" : "kv-heads");
}

std::int64_t PatternOptions::local_slashes() const {
  // Keys at most local − 1 tokens before a query lie at most this many blocks before its own.
  return local == 0 ? 0 : ceil_divide(local - 1, block_tokens) + 1;
}

void PatternOptions::check(std::int64_t tokens, std::string_view field) const {
  const std::string context = fmt::format("{} = '{}'", field, to_string());
  require(window <= tokens,
          "{}: the window of {} queries is longer than the sequence of {} tokens: use window={} or less",
          context, window, tokens, tokens);
  if (!fixed()) return;
  const std::int64_t blocks = ceil_divide(tokens, block_tokens);
  require(verticals <= tokens, "{}: a sequence of {} tokens has no {} verticals: use {} or less", context,
          tokens, verticals, tokens);
  require(slashes <= blocks, "{}: a sequence of {} tokens has {} block diagonals: use slashes={} or less",
          context, tokens, blocks, blocks);
  require(sinks <= verticals, "{}: {} sinks are among {} verticals: use verticals={} or more", context, sinks,
          verticals, sinks);
  require(local_slashes() <= slashes, "{}: keys closer than {} tokens take {} slashes: use that many or more",
          context, local, local_slashes());
}

}  // namespace annulus::sparsity
