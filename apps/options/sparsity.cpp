#include "options/sparsity.hpp"

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"
#include "options/selection_file.hpp"

namespace annulus::options {

Sparsity sparsity_of(const std::string& text, const plan::Problem& problem) {
  Sparsity sparsity;
  if (text.empty()) return sparsity;
  if (const auto left_out = parse_number<double>(text)) {
    require(
        *left_out >= 0 && *left_out < 1,
        "--sparsity {}: give the share of the pairs that is left out, from 0 to below 1, for instance 0.95",
        text);
    sparsity.selected.density = 1 - *left_out;
    return sparsity;
  }
  require(problem.mask.to_string() == "causal",
          "--sparsity {}: selections are made of the mask causal, not of {}: use causal", text,
          problem.mask.to_string());
  RecordedSelection selection = read_selection(text, "--sparsity");
  const auto blocks = std::make_shared<simulator::SelectedBlocks>(std::move(selection.blocks));
  require(blocks->tokens() == problem.mask.tokens(),
          "--sparsity {}: the selection is of {} tokens: set --tokens {}", text, blocks->tokens(),
          blocks->tokens());
  require(problem.heads % blocks->lists() == 0,
          "--sparsity {}: {} selections of a sequence cannot be those of {} heads: set --heads", text,
          blocks->lists(), problem.heads);
  sparsity.selected = blocks->selected();
  sparsity.columns = std::int64_t{problem.batch} * blocks->lists() * selection.most_columns;
  sparsity.blocks = blocks;
  return sparsity;
}

}  // namespace annulus::options
