#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <annulus/attention/sparsity/options.hpp>

#include "attention/sparsity/patterns/text.hpp"
#include "attention/sparsity/query_blocks/top_blocks.hpp"
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

template <class Exec, class T>
class Pattern;

/// Blocks of keys for each query and query head: its own one and those whose mean key has the largest product
/// with it (MoBA, Lu et al., arXiv 2502.13189; docs/sparsity.md).
///
///   block=B   tokens of a block, a multiple of 64 (512)
///   top=N     blocks of a query, its own among them (3)
///   dense-below=N   queries of documents shorter than N tokens have all blocks (0)
struct Moba {
  static constexpr std::string_view name = "moba", example = "moba:block=512,top=3";

  std::int64_t block = 512;  ///< tokens
  std::int64_t top = 3;
  std::int64_t dense_below = 0;  ///< tokens

  static Moba read(PartReader& parts) {
    Moba options;
    parts.read({{"block", [&] { options.block = parts.tokens_of_blocks(); }},
                {"top", [&] { options.top = parts.whole(1); }}},
               options.dense_below);
    return options;
  }

  std::string to_string() const {
    return fmt::format("{}:block={},top={}{}", name, block, top, dense_below_text(dense_below));
  }

  /// Any sequence has what is asked for: its last block may be cut, and a query takes the blocks that there
  /// are.
  void check(std::int64_t /*tokens*/, bool /*packed*/, std::string_view /*context*/) const {}

  TopBlocks blocks_of(std::int64_t tokens) const {
    return {.tokens = tokens, .block = block, .best = top - 1, .dense_below = dense_below};
  }

  SelectionMemory memory(const SelectionShape& shape) const {
    const TopBlocks of = blocks_of(shape.tokens);
    const std::int64_t heads = shape.all_heads(), products = heads * of.blocks();
    SelectionMemory memory;
    memory.kept = memory_of_bits(of, heads);
    memory.workspace = memory_of_means(shape, of.blocks(),
                                       TopBlocks::rows_at_once(products, shape.rows) * products * word_bytes);
    return memory;
  }

  SelectionForm form(std::int64_t /*tokens*/, bool /*packed*/) const {
    return {.block = block, .of_queries = true, .of_query_heads = true};
  }

  double density(std::int64_t tokens) const { return blocks_of(tokens).density(); }

  template <class Exec, class T>
  std::unique_ptr<Pattern<Exec, T>> make() const;

  friend bool operator==(const Moba&, const Moba&) = default;
};

}  // namespace annulus::sparsity
