#include "attention/sparsity/selection_memory.hpp"

#include <algorithm>
#include <cmath>

#include <annulus/base/division.hpp>

#include "attention/sparsity/mass_places.hpp"

namespace annulus::sparsity {

namespace {

constexpr std::int64_t word_bytes = 4, count_bytes = 8;  // of 32 bits; of counts, positions and masses

std::int64_t predicted(std::int64_t all) {
  return static_cast<std::int64_t>(std::ceil(predicted_share * static_cast<double>(all)));
}

/// What a list holds.
struct Chosen {
  std::int64_t columns, slashes;
};
Chosen chosen(const PatternOptions& options, std::int64_t tokens) {
  const std::int64_t blocks = MassPlaces{tokens}.blocks();
  if (options.recall == 1) return {0, blocks};
  if (options.fixed()) return {options.verticals, options.slashes};
  return {predicted(tokens), predicted(blocks)};
}

}  // namespace

SelectionMemory selection_memory(const PatternOptions& options, const SelectionShape& shape) {
  const MassPlaces places{shape.tokens};
  const std::int64_t blocks = places.blocks(), batch = shape.batch, heads = batch * shape.heads,
                     lists = batch * (options.of_query_heads ? shape.heads : shape.kv_heads);
  const auto element = static_cast<std::int64_t>(shape.element), width = std::int64_t{shape.head_dim};
  const auto [columns, slashes] = chosen(options, shape.tokens);
  const std::int64_t slash_words = word_bytes * lists * ceil_divide(blocks, std::int64_t{32}),
                     key_words = word_bytes * lists * ceil_divide(shape.tokens, std::int64_t{32});

  SelectionMemory memory;
  memory.kept = slash_words + word_bytes * lists * columns;
  const std::int64_t masses = count_bytes * lists * places.all();
  const std::int64_t scores =
      heads * options.window *
      (width * (element + word_bytes) + word_bytes * shape.rows + word_bytes + count_bytes);
  // The scores are gone when verticals are chosen.
  const std::int64_t select = options.recall == 1
                                  ? 0
                                  : std::max(scores + masses * (options.joint ? 2 : 1),
                                             masses + key_words * (options.joint ? 2 : 1) + slash_words);
  const std::int64_t lists_of_pass = count_bytes * (lists * blocks + lists * (blocks + 1) +
                                                    lists * most_listed(blocks, slashes) + lists * columns);
  // Columns and their gradients, head by head, where heads share a list.
  const std::int64_t head_columns = heads == lists ? 0
                                                   : 2 * heads * columns * width * (element + 4) +
                                                         count_bytes * heads * (columns + blocks + 1);
  memory.workspace = std::max(select, lists_of_pass + head_columns);
  memory.communication = 2 * lists * columns * width * (element + 4);
  return memory;
}

double predicted_density(const PatternOptions& options, std::int64_t tokens) {
  const auto [columns, slashes] = chosen(options, tokens);
  const std::int64_t blocks = MassPlaces{tokens}.blocks();
  const double all = 0.5 * static_cast<double>(blocks * (blocks + 1)),
               of_slashes = static_cast<double>(most_listed(blocks, slashes)) / all,
               of_columns = static_cast<double>(columns) / static_cast<double>(tokens);
  return of_slashes + (1 - of_slashes) * of_columns;
}

}  // namespace annulus::sparsity
