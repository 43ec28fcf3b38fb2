#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/division.hpp>

#include "attention/sparsity/patterns/text.hpp"
#include "attention/sparsity/query_blocks/top_blocks.hpp"
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

template <class Exec, class T>
class Pattern;

/// Blocks of keys for each query and kv head: those of the first tokens and of the last ones, and those with
/// the highest probability of a compressed key (InfLLM-V2, arXiv 2509.24663; docs/sparsity.md).
///
///   block=B    tokens of a block, a multiple of 64 (64)
///   top=N      blocks of a query besides those of `sinks` and `window` (31)
///   sinks=N    the first N tokens, whose blocks all queries have (64)
///   window=N   the last N tokens up to the query, whose blocks it has (2048)
///   stride=S   a compressed key is the mean of 2 · S tokens, and the next one begins S behind it; S divides
///              B (16)
///   dense-below=N   queries of documents shorter than N tokens have all blocks (0)
struct InfLlmV2 {
  static constexpr std::string_view name = "infllm-v2", example = "infllm-v2:block=64,top=31,window=2048";

  std::int64_t block = 64, top = 31, sinks = 64, window = 2048, stride = 16;
  std::int64_t dense_below = 0;  ///< tokens

  static InfLlmV2 read(PartReader& parts) {
    InfLlmV2 options;
    parts.read({{"block", [&] { options.block = parts.tokens_of_blocks(); }},
                {"top", [&] { options.top = parts.whole(0); }},
                {"sinks", [&] { options.sinks = parts.whole(0); }},
                {"window", [&] { options.window = parts.whole(1); }},
                {"stride", [&] { options.stride = parts.whole(1); }}},
               options.dense_below);
    if (options.block % options.stride != 0)
      parts.reject_text(fmt::format("stride={} does not divide blocks of block={}: give a divisor of it",
                                    options.stride, options.block));
    return options;
  }

  std::string to_string() const {
    return fmt::format("{}:block={},top={},sinks={},window={},stride={}{}", name, block, top, sinks, window,
                       stride, dense_below_text(dense_below));
  }

  /// Any sequence has what is asked for, as with Moba.
  void check(std::int64_t /*tokens*/, bool /*packed*/, std::string_view /*context*/) const {}

  TopBlocks blocks_of(std::int64_t tokens) const {
    return {.tokens = tokens,
            .block = block,
            .best = top,
            .sinks = sinks,
            .window = window,
            .dense_below = dense_below};
  }
  /// Compressed keys that the first `tokens` tokens have whole.
  ANNULUS_FUNCTION static std::int64_t keys_of(std::int64_t tokens, std::int64_t stride) {
    const std::int64_t halves = tokens / stride;
    return halves > 1 ? halves - 1 : 0;
  }
  std::int64_t keys(std::int64_t tokens) const { return keys_of(tokens, stride); }
  /// Rows that choose at once, of `rows`: their scores of blocks have 64 MiB, where several tiles have.
  std::int64_t rows_that_choose(std::int64_t lists, std::int64_t tokens, std::int64_t rows) const {
    return TopBlocks::rows_at_once(4 * lists * blocks_of(tokens).blocks(), rows);
  }
  /// Rows whose products with compressed keys are there at once, of `rows` that choose.
  std::int64_t rows_at_once(std::int64_t heads, std::int64_t tokens, std::int64_t rows) const {
    return TopBlocks::rows_at_once(heads * keys(tokens), rows);
  }

  SelectionMemory memory(const SelectionShape& shape) const {
    const TopBlocks of = blocks_of(shape.tokens);
    const std::int64_t heads = shape.all_heads(), lists = shape.lists(false), width = shape.head_dim,
                       choosing = rows_that_choose(lists, shape.tokens, shape.rows);
    SelectionMemory memory;
    memory.kept = memory_of_bits(of, lists);
    // Of a row: products and their maxima, queries in fp32, and which keys it sees.
    const std::int64_t of_row =
        word_bytes * heads * (keys(shape.tokens) + 1 + width) + count_bytes * (1 + shape.batch);
    memory.workspace =
        std::max(memory_of_means(shape, ceil_divide(shape.tokens, stride), 0),
                 lists * keys(shape.tokens) * width * static_cast<std::int64_t>(shape.element) +
                     choosing * lists * of.blocks() * word_bytes +
                     rows_at_once(heads, shape.tokens, choosing) * of_row);
    return memory;
  }

  SelectionForm form(std::int64_t /*tokens*/, bool /*packed*/) const {
    return {.block = block, .of_queries = true};
  }

  double density(std::int64_t tokens) const { return blocks_of(tokens).density(); }

  template <class Exec, class T>
  std::unique_ptr<Pattern<Exec, T>> make() const;

  friend bool operator==(const InfLlmV2&, const InfLlmV2&) = default;
};

}  // namespace annulus::sparsity
