#include "block_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"

namespace annulus::detail {

namespace {

constexpr std::string_view magic = "annulus-block-mask";
constexpr std::string_view version = "1";
constexpr std::size_t most_columns = std::size_t{1}
                                     << 26;  // half a GiB, which a file of a few bytes can ask for
constexpr std::string_view described = "docs/formats/block-mask.md describes the format";

/// The next word of `line`, which loses it; empty at the end.
std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const std::string_view word = line.substr(0, std::min(line.find_first_of(" \t"), line.size()));
  line.remove_prefix(word.size());
  return word;
}

class BlockListReader {
 public:
  BlockListReader(const std::string& file, std::int64_t blocks, std::string_view context)
      : file_(file), blocks_(blocks), context_(context), lines_(open(file, context)) {}

  BlockList read() {
    read_header();
    BlockList list;
    list.row_starts.push_back(0);
    for (std::int64_t row = 0; row < blocks_; ++row) {
      read_row(row, list.columns);
      list.row_starts.push_back(static_cast<std::int64_t>(list.columns.size()));
    }
    next("the line 'end'");
    if (take_word(line_) != "end" || !take_word(line_).empty())
      reject(fmt::format("expected the line 'end' after {} rows; {}", blocks_, described));
    return list;
  }

 private:
  static LineReader open(const std::string& file, std::string_view context) {
    try {
      return LineReader(file, kinds::block_list);
    } catch (const Error& error) {
      fail("{}: {}; {}", context, error.what(), described);
    }
  }

  void read_header() {
    next("the header");
    const std::string_view name = take_word(line_), found = take_word(line_);
    if (name != magic)
      reject(fmt::format("is no block list, which starts with '{} {}'; {}", magic, version, described));
    if (found != version || !take_word(line_).empty())
      reject(fmt::format("has version '{}', but this program reads version {}: write the file anew; {}",
                         found, version, described));
    next("the line 'blocks COUNT'");
    const std::string_view keyword = take_word(line_);
    const auto count = parse_number<std::int64_t>(take_word(line_));
    if (keyword != "blocks" || !count || !take_word(line_).empty())
      reject(fmt::format("expected the line 'blocks COUNT'; {}", described));
    if (*count != blocks_)
      reject(fmt::format(
          "lists {0} × {0} blocks, but the sequence has {1}: write the file for this length and block size, "
          "or change SIZE",
          *count, blocks_));
  }

  /// "ROW: column first-last …"
  void read_row(std::int64_t row, std::vector<std::int64_t>& columns) {
    next(fmt::format("row {} of {}", row, blocks_));
    const std::size_t colon = line_.find(':');
    std::string_view label = line_.substr(0, colon);
    const auto number = parse_number<std::int64_t>(take_word(label));
    if (colon == std::string_view::npos || number != row || !take_word(label).empty())
      reject(fmt::format(
          "expected row {0}, which starts with '{0}:': write every row, also those without blocks, in order",
          row));
    line_.remove_prefix(colon + 1);
    std::int64_t next_free = 0;
    for (std::string_view word = take_word(line_); !word.empty(); word = take_word(line_)) {
      const std::size_t dash = word.find('-');
      const auto first = parse_number<std::int64_t>(word.substr(0, dash));
      const auto last =
          dash == std::string_view::npos ? first : parse_number<std::int64_t>(word.substr(dash + 1));
      if (!first || !last || *first < 0 || *last < *first)
        reject(fmt::format("'{}' is neither a block column nor a range FIRST-LAST of them", word));
      if (*last >= blocks_)
        reject(fmt::format("block column {} is out of range: columns go from 0 to {}", *last, blocks_ - 1));
      if (*first < next_free)
        reject(fmt::format("block column {} comes again or after a larger one: sort the columns of a row",
                           *first));
      if (static_cast<std::size_t>(*last - *first) >= most_columns - columns.size())
        reject(fmt::format("more than {} blocks in all: make the blocks of the mask larger", most_columns));
      for (std::int64_t column = *first; column <= *last; ++column) columns.push_back(column);
      next_free = *last + 1;
    }
  }

  /// Moves on to the next line that is neither blank nor a comment.
  void next(std::string_view expected) {
    while (lines_.next(text_)) {
      line_ = text_;
      if (line_.ends_with('\r')) line_.remove_suffix(1);
      if (const std::size_t begin = line_.find_first_not_of(" \t");
          begin == std::string_view::npos || line_[begin] == '#')
        continue;
      return;
    }
    fail("{}: {} ends behind line {}, before {}: the file is truncated, write it anew; {}", context_, file_,
         lines_.number(), expected, described);
  }

  [[noreturn]] void reject(const std::string& why) const {
    fail("{}: {}:{}: {}", context_, file_, lines_.number(), why);
  }

  const std::string& file_;
  std::int64_t blocks_;
  std::string_view context_;
  LineReader lines_;
  std::string text_;
  std::string_view line_;  // what is left of text_
};

}  // namespace

BlockList read_block_list(const std::string& file, std::int64_t blocks, std::string_view context) {
  return BlockListReader(file, blocks, context).read();
}

}  // namespace annulus::detail
