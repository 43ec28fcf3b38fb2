#include "options/selection_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include <annulus/base/error.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

namespace annulus::options {

namespace {

constexpr std::int64_t block = 64;  // tokens, of sparsity::block_tokens: this program has no Kokkos
constexpr std::uint64_t most_marks = std::uint64_t{1} << 29;  // in memory at once

/// The datasets of one layer's selection.
class SelectionFile {
 public:
  SelectionFile(const std::string& text, std::string_view field)
      : text_(text),
        field_(field),
        colon_(text.rfind(":layers.")),
        file_(io::File::open(text.substr(0, colon_))) {}

  bool has(const std::string& what) const { return file_.has(name_of(what)); }

  /// (sequences, lists, tokens) or, of blocks, (sequences, lists, tokens, bytes).
  io::Dataset dataset(const std::string& what, std::size_t rank) const {
    require(has(what),
            "{} {}: the file has no {}: give a dump of a sparse step, "
            "and of annulus-train its layer, as dump.h5:layers.0",
            field_, text_, name_of(what));
    io::Dataset dataset = file_.dataset(name_of(what));
    dataset.require_type(DType::u8);
    dataset.require_rank(rank);
    const std::uint64_t lists = dataset.extents()[1], tokens = dataset.extents()[2];
    require(tokens > 0 && lists <= most_marks / tokens,
            "{} {}: {} selections of {} tokens, more than {} marks in all: give a shorter sequence", field_,
            text_, lists, tokens, most_marks);
    return dataset;
  }

  /// The option, for messages.
  std::string option() const { return fmt::format("{} {}", field_, text_); }

 private:
  std::string name_of(const std::string& what) const {
    return (colon_ == std::string::npos ? std::string() : text_.substr(colon_ + 1) + ".") + what;
  }

  const std::string& text_;
  std::string_view field_;
  std::size_t colon_;
  io::File file_;
};

/// A mark for each token of each selection of the first sequence.
struct DumpMarks {
  std::uint64_t lists, tokens;
  std::vector<std::uint8_t> marks;

  bool operator()(std::uint64_t list, std::uint64_t token) const { return marks[list * tokens + token] != 0; }
};

DumpMarks read_marks(const SelectionFile& file, const std::string& what) {
  const io::Dataset dataset = file.dataset(what, 3);
  DumpMarks read{dataset.extents()[1], dataset.extents()[2], {}};
  read.marks.resize(read.lists * read.tokens);
  dataset.read({.start = {0, 0, 0}, .count = {1, read.lists, read.tokens}}, std::span(read.marks));
  return read;
}

simulator::SelectedBlocks read_slashes(const SelectionFile& file) {
  const DumpMarks slashes = read_marks(file, "selected_slashes");
  std::vector<std::vector<std::int64_t>> distances(slashes.lists);
  for (std::uint64_t list = 0; list < slashes.lists; ++list)
    for (std::uint64_t token = 0; token < slashes.tokens; token += block)
      if (slashes(list, token)) distances[list].push_back(static_cast<std::int64_t>(token) / block);
  return {static_cast<std::int64_t>(slashes.tokens), block, distances};
}

/// Bits of block columns: of each token, or, where `row_tokens` is a block, the same of all its tokens.
simulator::SelectedBlocks read_blocks(const SelectionFile& file, const std::string& what,
                                      std::int64_t row_tokens) {
  const io::Dataset dataset = file.dataset(what, 4);
  const std::uint64_t lists = dataset.extents()[1], tokens = dataset.extents()[2],
                      bytes = dataset.extents()[3];
  const std::uint64_t blocks = (tokens + block - 1) / block;
  require(
      bytes == (blocks + 7) / 8,
      "{}: {} has {} bytes of each token for {} blocks of {} tokens: give a file that Annulus has written",
      file.option(), what, bytes, blocks, block);
  const std::uint64_t rows_at_once = row_tokens == 1 ? block : 1;  // a block's tokens are read together
  std::vector<std::uint8_t> bits(rows_at_once * bytes);
  const auto columns_of = [&](int list, std::int64_t row) {
    const auto token = static_cast<std::uint64_t>(row * row_tokens);
    if (token % block == 0) {
      const std::uint64_t count = std::min(rows_at_once, tokens - token);
      dataset.read({.start = {0, static_cast<std::uint64_t>(list), token, 0}, .count = {1, 1, count, bytes}},
                   std::span(bits).first(count * bytes));
    }
    const std::uint8_t* const of_row = &bits[token % block * bytes];
    std::vector<std::int64_t> columns;
    for (std::uint64_t column = 0; column <= token / block; ++column)
      if ((of_row[column / 8] >> (column % 8) & 1u) != 0)
        columns.push_back(static_cast<std::int64_t>(column));
    return columns;
  };
  return simulator::SelectedBlocks::of_rows(static_cast<std::int64_t>(tokens), block, row_tokens,
                                            static_cast<int>(lists), columns_of);
}

}  // namespace

RecordedSelection read_selection(const std::string& text, std::string_view field) {
  const SelectionFile file(text, field);
  const bool by_query = file.has("selected_query_blocks"), by_block = file.has("selected_blocks");
  RecordedSelection selection{by_query   ? read_blocks(file, "selected_query_blocks", 1)
                              : by_block ? read_blocks(file, "selected_blocks", block)
                                         : read_slashes(file)};
  if ((by_query || by_block) && !file.has("selected_columns"))
    return selection;  // no pattern column by column
  const DumpMarks columns = read_marks(file, "selected_columns");
  for (auto list = columns.marks.begin(); list != columns.marks.end(); list += std::ptrdiff_t(columns.tokens))
    selection.most_columns = std::max<std::int64_t>(
        selection.most_columns, std::count_if(list, list + std::ptrdiff_t(columns.tokens), std::identity()));
  return selection;
}

}  // namespace annulus::options
