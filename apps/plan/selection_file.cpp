#include "plan/selection_file.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include <annulus/base/error.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

namespace annulus::planner {

namespace {

/// A mark for each token of each selection of the first sequence.
struct DumpMarks {
  std::uint64_t lists, tokens;
  std::vector<std::uint8_t> marks;

  bool operator()(std::uint64_t list, std::uint64_t token) const { return marks[list * tokens + token] != 0; }
};

DumpMarks read_marks(const std::string& text, const std::string& what, std::string_view field) {
  const std::size_t colon = text.rfind(":layers.");
  const io::File file = io::File::open(text.substr(0, colon));
  const std::string name = (colon == std::string::npos ? std::string() : text.substr(colon + 1) + ".") + what;
  require(file.has(name),
          "{} {}: the file has no {}: give a dump of a sparse step, and of annulus-train its layer, as "
          "dump.h5:layers.0",
          field, text, name);
  const io::Dataset dataset = file.dataset(name);
  dataset.require_type(DType::u8);
  dataset.require_rank(3);
  DumpMarks read{dataset.extents()[1], dataset.extents()[2], {}};
  constexpr std::uint64_t most_marks = std::uint64_t{1} << 29;  // in memory at once
  require(read.tokens > 0 && read.lists <= most_marks / read.tokens,
          "{} {}: {} selections of {} tokens, more than {} marks in all: give a shorter sequence", field,
          text, read.lists, read.tokens, most_marks);
  read.marks.resize(read.lists * read.tokens);
  dataset.read({.start = {0, 0, 0}, .count = {1, read.lists, read.tokens}}, std::span(read.marks));
  return read;
}

}  // namespace

RecordedSelection read_selection(const std::string& text, std::string_view field) {
  constexpr std::int64_t block = 64;  // tokens, of sparsity::block_tokens: this program has no Kokkos
  const DumpMarks slashes = read_marks(text, "selected_slashes", field);
  std::vector<std::vector<std::int64_t>> distances(slashes.lists);
  for (std::uint64_t list = 0; list < slashes.lists; ++list)
    for (std::uint64_t token = 0; token < slashes.tokens; token += block)
      if (slashes(list, token)) distances[list].push_back(static_cast<std::int64_t>(token) / block);
  RecordedSelection selection{{static_cast<std::int64_t>(slashes.tokens), block, distances}};
  const DumpMarks columns = read_marks(text, "selected_columns", field);
  for (auto list = columns.marks.begin(); list != columns.marks.end(); list += std::ptrdiff_t(columns.tokens))
    selection.most_columns = std::max<std::int64_t>(
        selection.most_columns, std::count_if(list, list + std::ptrdiff_t(columns.tokens), std::identity()));
  return selection;
}

}  // namespace annulus::planner
