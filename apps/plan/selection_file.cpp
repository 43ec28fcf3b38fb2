#include "plan/selection_file.hpp"

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/io/hdf5.hpp>

namespace annulus::planner {

simulate::SelectedBlocks read_selection(const std::string& text, std::string_view field) {
  constexpr std::int64_t block = 64;  // tokens, of sparsity::block_tokens: this program has no Kokkos
  const std::size_t colon = text.rfind(":layers.");
  const io::File file = io::File::open(text.substr(0, colon));
  const std::string name =
      (colon == std::string::npos ? std::string() : text.substr(colon + 1) + ".") + "selected_slashes";
  require(file.has(name),
          "{} {}: the file has no {}: give a dump of a sparse step, and of annulus-train its layer, as "
          "dump.h5:layers.0",
          field, text, name);
  const io::Dataset slashes = file.dataset(name);
  slashes.require_type(DType::u8);
  slashes.require_rank(3);
  const std::uint64_t lists = slashes.extents()[1], tokens = slashes.extents()[2];
  std::vector<std::uint8_t> marks(lists * tokens);  // of the first sequence
  slashes.read({.start = {0, 0, 0}, .count = {1, lists, tokens}}, std::span(marks));
  std::vector<std::vector<std::int64_t>> distances(lists);
  for (std::uint64_t list = 0; list < lists; ++list)
    for (std::uint64_t token = 0; token < tokens; token += block)
      if (marks[list * tokens + token] != 0)
        distances[list].push_back(static_cast<std::int64_t>(token) / block);
  return {static_cast<std::int64_t>(tokens), block, distances};
}

}  // namespace annulus::planner
