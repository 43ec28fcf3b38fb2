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
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

template <class Exec, class T>
class Pattern;

/// Blocks of keys for each block of queries, by the sums of scores along antidiagonals of tiles (Xu et al.,
/// XAttention, arXiv 2503.16428, Algorithm 1; docs/sparsity.md).
///
///   block=B         tokens of a side of the blocks, a multiple of 64 (128)
///   stride=S        tokens of a side of the tiles, which divides B (16)
///   threshold=R     the selected blocks of a block row hold the share R of its mass, 0 < R ≤ 1 (0.9)
///   select=heads|kv-heads   one selection for each query head, or for those of a kv head together (heads)
///   dense-below=N   documents shorter than N tokens have all blocks (0)
struct XAttention {
  static constexpr std::string_view name = "xattention",
                                    example = "xattention:block=128,stride=16,threshold=0.9";

  std::int64_t block = 128, stride = 16;  ///< tokens
  double threshold = 0.9;
  bool of_query_heads = true;    ///< select=heads
  std::int64_t dense_below = 0;  ///< tokens

  static XAttention read(PartReader& parts) {
    XAttention options;
    parts.read(
        {{"block", [&] { options.block = parts.tokens_of_blocks(65536); }},
         {"stride", [&] { options.stride = parts.whole(1); }},
         {"threshold", [&] { options.threshold = parts.share("a block row's mass", "threshold=0.9"); }},
         {"select", [&] { options.of_query_heads = parts.selects_for_query_heads(); }}},
        options.dense_below);
    if (options.block % options.stride != 0)
      parts.reject_text(
          fmt::format("tiles of stride={} do not divide blocks of block={}: give a divisor of it",
                      options.stride, options.block));
    return options;
  }

  std::string to_string() const {
    return fmt::format("{}:block={},stride={},threshold={},select={}{}", name, block, stride, threshold,
                       select_text(of_query_heads), dense_below_text(dense_below));
  }

  /// Any sequence has what is asked for: blocks and tiles at its end may be cut.
  void check(std::int64_t /*tokens*/, bool /*packed*/, std::string_view /*context*/) const {}

  /// Documents shorter than so many tokens have all blocks.
  std::int64_t all_below() const { return threshold == 1 ? std::int64_t{1} << 40 : dense_below; }

  /// Block rows whose scores are there at once: their scores have 256 MiB, where several have. With few rows
  /// at once, long sequences would spend their time on launches and on reading all keys again.
  std::int64_t rows_at_once(std::int64_t tokens, std::int64_t heads_of_kv_head) const {
    constexpr std::int64_t scores = std::int64_t{1} << 26;
    return std::max<std::int64_t>(
        1, scores / (heads_of_kv_head * (block / stride) * ceil_divide(tokens, stride)));
  }

  SelectionMemory memory(const SelectionShape& shape) const {
    const std::int64_t rows = ceil_divide(shape.tokens, block), lists = shape.lists(of_query_heads),
                       words = lists * rows * ceil_divide(rows, std::int64_t{32});
    const std::int64_t blocks = blocks_of(shape.tokens), all = blocks * (blocks + 1) / 2;
    const std::int64_t listed =
        shape.tokens < all_below()
            ? all
            : std::max(predicted_of(all), shape.packed ? most_dense_blocks(shape.tokens, dense_below) : 0);
    SelectionMemory memory = memory_of_passes(shape, {lists, words, lists * listed, 0});
    if (threshold == 1) return memory;
    // Keys of a kv head, and of some block rows the queries and their scores: as `select` takes them.
    const std::int64_t group = shape.heads / shape.kv_heads, width = shape.head_dim,
                       at_once =
                           std::min(rows_at_once(shape.tokens, group), ceil_divide(shape.rows, block) + 1),
                       tiles = ceil_divide(shape.tokens, stride), queries = at_once * (block / stride),
                       lists_of_kv_head = of_query_heads ? group : 1,
                       ranks = ceil_divide(shape.tokens, shape.rows);
    // Of rows that no rank has whole, the queries of all ranks lie beside these.
    const std::int64_t gathered = ranks == 1 ? 0 : std::min(ranks * at_once, rows + ranks - 1);
    // Of a list of a block row: masses and bits of its blocks, and what choose_largest has of it.
    const std::int64_t of_row =
        rows * count_bytes + ceil_divide(rows, std::int64_t{32}) * word_bytes + choice_bytes(rows, 1);
    const auto element = static_cast<std::int64_t>(shape.element);
    memory.workspace =
        std::max(memory.workspace, (shape.packed ? 2 : 1) * tiles * stride * width * element +
                                       group * (at_once + gathered) * block * width * element +
                                       group * queries * (word_bytes * (tiles + 1) + count_bytes) +
                                       2 * queries * count_bytes + lists_of_kv_head * at_once * of_row);
    return memory;
  }

  SelectionForm form(std::int64_t /*tokens*/, bool /*packed*/) const {
    return {.of_query_heads = of_query_heads};
  }

  double density(std::int64_t tokens) const {
    if (threshold == 1) return 1;
    const double own = share_of_nearest(tokens, block, 1);
    return own + predicted_share * (1 - own);
  }

  template <class Exec, class T>
  std::unique_ptr<Pattern<Exec, T>> make() const;

  friend bool operator==(const XAttention&, const XAttention&) = default;
};

}  // namespace annulus::sparsity
