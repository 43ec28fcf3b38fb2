#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/division.hpp>

#include "attention/sparsity/query_blocks/top_blocks.hpp"

namespace annulus::sparsity {

/// The attention that selections are made for, of one rank.
struct SelectionShape {
  std::int64_t tokens = 0, rows = 0;  ///< of a sequence, of all ranks and of this one
  int batch = 1, heads = 1, kv_heads = 1, head_dim = 64;
  std::size_t element = 4;     ///< bytes of q, k and v
  bool packed = false;         ///< sequences have documents, as many as there may be
  bool keeps_columns = false;  ///< K and V of columns, from the forward to the backward pass

  std::int64_t all_heads() const { return std::int64_t{batch} * heads; }
  /// Selections of the whole batch.
  std::int64_t lists(bool of_query_heads) const {
    return std::int64_t{batch} * (of_query_heads ? heads : kv_heads);
  }
};

/// Bytes that sparse attention takes on a rank besides that of executor::Attention.
struct SelectionMemory {
  std::int64_t kept = 0;           ///< of a layer, from its forward to its backward pass (activations)
  std::int64_t workspace = 0;      ///< the most at once: what selecting takes, or block lists
  std::int64_t communication = 0;  ///< the most at once: K, V, dK and dV of the columns
};

/// How a pattern's selections are told to kernels (Lists), and how many columns each of them has.
struct SelectionForm {
  std::int64_t block = block_tokens;  ///< tokens
  bool of_queries = false;            ///< bits of each query, else block lists
  bool of_query_heads = false;        ///< one for each query head, else for those of a kv head together
  std::int64_t columns = 0;
};

/// The share that a selection by mass is taken to choose (of keys, of block distances, of blocks) where its
/// memory is predicted: what it does choose shows only while a run goes on.
inline constexpr double predicted_share = 0.1;
inline std::int64_t predicted_of(std::int64_t all) {
  return static_cast<std::int64_t>(std::ceil(predicted_share * static_cast<double>(all)));
}

/// Blocks of block_tokens in a sequence.
inline std::int64_t blocks_of(std::int64_t tokens) {
  return ceil_divide(tokens, block_tokens);
}

/// The share of the causal pairs of `tokens` tokens of which the blocks of `block` tokens lie fewer than
/// `distances` apart.
inline double share_of_nearest(std::int64_t tokens, std::int64_t block, std::int64_t distances) {
  // The others: rows of blocks with 1, 2, … blocks, of which the last row may be cut.
  const std::int64_t blocks = ceil_divide(tokens, block), far = std::max<std::int64_t>(0, blocks - distances),
                     last = tokens - (blocks - 1) * block;
  const auto all = static_cast<double>(tokens);
  return 1 - static_cast<double>(block * far) *
                 (0.5 * static_cast<double>(block * (far - 1)) + static_cast<double>(last)) /
                 (0.5 * all * (all + 1));
}

inline constexpr std::int64_t word_bytes = 4, count_bytes = 8;  // of 32 bits; of counts, positions and masses

/// Lists of more items are long for choose_largest: many teams look at one.
inline constexpr std::int64_t items_of_short_list = 4096;

/// What choose_largest has of each segment of lists of so many items, for `count` choices at once: a limit,
/// and of long lists totals, three sets of sums and two searches.
constexpr std::int64_t choice_bytes(std::int64_t items, std::int64_t count) {
  return count * count_bytes * (items > items_of_short_list ? 2 + 3 + 3 * 16 + 2 * 6 : 2);
}

/// What a pattern selects, for all lists together.
struct SelectedSizes {
  std::int64_t lists = 0;
  std::int64_t words = 0;    ///< of 32 bits, of Selection::blocks
  std::int64_t listed = 0;   ///< blocks
  std::int64_t columns = 0;  ///< of each list
};

/// What a selection of these sizes takes in the passes. `workspace` is to be raised to what selecting takes.
inline SelectionMemory memory_of_passes(const SelectionShape& shape, const SelectedSizes& sizes) {
  const auto element = static_cast<std::int64_t>(shape.element), width = std::int64_t{shape.head_dim};
  const std::int64_t blocks = blocks_of(shape.tokens), heads = shape.all_heads();
  const auto& [lists, words, listed, columns] = sizes;
  SelectionMemory memory;
  const std::int64_t keys = 2 * lists * columns * width * element, sums = 2 * lists * columns * width * 4;
  memory.kept = word_bytes * (words + lists * columns) + (shape.keeps_columns ? keys : 0);
  const std::int64_t lists_of_pass =
      count_bytes * (lists * blocks + lists * (blocks + 1) + listed + lists * columns);
  // Columns and their gradients, head by head, where heads share a list.
  const std::int64_t head_columns =
      heads == lists || columns == 0
          ? 0
          : 2 * heads * columns * width * (element + 4) + count_bytes * heads * (columns + blocks + 1);
  memory.workspace = lists_of_pass + head_columns;
  memory.communication = (shape.keeps_columns ? 0 : keys) + sums;
  return memory;
}

/// Bytes that the bits of blocks of each query take, of `lists` of the whole batch.
inline std::int64_t memory_of_bits(const TopBlocks& of, std::int64_t lists) {
  return lists * of.tokens * of.words() * word_bytes;
}
/// Bytes that means of keys, of so many blocks of each kv head (pooled_keys), take together with what
/// follows: the largest key of each block and sums of keys, or `products`.
inline std::int64_t memory_of_means(const SelectionShape& shape, std::int64_t blocks, std::int64_t products) {
  const std::int64_t all = shape.lists(false) * blocks, width = shape.head_dim;
  return all * width * word_bytes + std::max(all * (word_bytes + width * count_bytes), products);
}

/// Memory of a selection: with fixed numbers exactly, but for a few bytes a head; by predicted_share where
/// masses decide, and for columns of documents.
SelectionMemory selection_memory(const PatternOptions& options, const SelectionShape& shape);

/// Columns by predicted_share where masses decide, and with documents (`packed`).
SelectionForm selection_form(const PatternOptions& options, std::int64_t tokens, bool packed = false);

/// The blocks of each query, of a pattern that chooses these; none of another.
std::optional<TopBlocks> top_blocks(const PatternOptions& options, std::int64_t tokens);

/// The share of the causal pairs of `tokens` tokens that is selected, as exact as selection_memory, where
/// slashes are the nearest ones and no column lies in them.
double predicted_density(const PatternOptions& options, std::int64_t tokens);
/// The share of the pairs inside documents, which start there and end with `tokens`: as if each began with a
/// block.
double predicted_density(const PatternOptions& options, std::int64_t tokens,
                         std::span<const std::int64_t> document_starts);

/// Blocks of a list with documents, where those shorter than `dense_below` tokens are all of one length.
inline std::int64_t most_dense_blocks(std::int64_t tokens, std::int64_t dense_below) {
  const std::int64_t longest = std::min(tokens, dense_below);
  return longest == 0 ? 0 : blocks_of(tokens) * (blocks_of(longest) + 2) / 2;
}

}  // namespace annulus::sparsity
