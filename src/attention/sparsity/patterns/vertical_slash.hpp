#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "attention/sparsity/patterns/mass_places.hpp"
#include "attention/sparsity/patterns/text.hpp"
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

template <class Exec, class T>
class Pattern;

/// Verticals and slashes by the mass that an observation window gives them (MTraining, section 4.1, Algorithm
/// 1; docs/sparsity.md).
///
///   recall=R        verticals and slashes each hold the share R of the window's mass, 0 < R ≤ 1 (0.9)
///   budget=separate|joint   joint: verticals and slashes together hold it, each pair counted once (separate)
///   verticals=N,slashes=N   fixed numbers of both, in the place of `recall`
///   window=W        the last W queries observe (64)
///   sinks=N         the first N tokens are verticals, whatever their mass (0)
///   local=N         slashes hold every key closer than N tokens (1: a query sees its own block)
///   select=kv-heads|heads   one selection for the query heads of a kv head together, or for each (kv-heads)
///   dense-below=N   documents shorter than N tokens take all their pairs (0)
///
/// Each document has a window, verticals and slashes of its own, and the budget for itself.
struct VerticalSlash {
  static constexpr std::string_view name = "vertical-slash", example = "vertical-slash:recall=0.9,window=64";

  double recall = 0.9;           ///< 0 with fixed budgets
  bool joint = false;            ///< budget=joint
  std::int64_t verticals = 0;    ///< columns of a selection, sinks among them; with recall 0
  std::int64_t slashes = 0;      ///< block diagonals, the local ones among them; with recall 0
  std::int64_t window = 64;      ///< queries
  std::int64_t sinks = 0;        ///< tokens
  std::int64_t local = 1;        ///< tokens
  bool of_query_heads = false;   ///< select=heads
  std::int64_t dense_below = 0;  ///< tokens

  static VerticalSlash read(PartReader& parts) {
    VerticalSlash options;
    parts.read(
        {{"recall", [&] { options.recall = parts.share("the window's mass", "recall=0.9"); }},
         {"budget", [&] { options.joint = parts.is_second("separate", "joint", "who shares the recall"); }},
         {"verticals", [&] { options.verticals = parts.whole(0); }},
         {"slashes", [&] { options.slashes = parts.whole(0); }},
         {"window", [&] { options.window = parts.whole(1); }},
         {"sinks", [&] { options.sinks = parts.whole(0); }},
         {"local", [&] { options.local = parts.whole(0); }},
         {"select", [&] { options.of_query_heads = parts.selects_for_query_heads(); }}},
        options.dense_below);
    const bool verticals = parts.seen("verticals"), slashes = parts.seen("slashes");
    if (verticals != slashes)
      parts.reject_text(fmt::format("it fixes the {} but not the {}: give both, or recall alone",
                                    verticals ? "verticals" : "slashes",
                                    verticals ? "slashes" : "verticals"));
    if (!verticals) return options;
    if (parts.seen("recall"))
      parts.reject_text("it gives a recall and fixed numbers of verticals and slashes: give one of the two");
    if (options.joint)
      parts.reject_text(
          "budget=joint shares a recall, but the numbers of verticals and slashes are fixed: give a recall "
          "in their place, or leave budget=joint out");
    options.recall = 0;
    return options;
  }

  std::string to_string() const {
    const std::string budget = fixed() ? fmt::format("verticals={},slashes={}", verticals, slashes)
                                       : fmt::format("recall={}{}", recall, joint ? ",budget=joint" : "");
    return fmt::format("{}:{},window={},sinks={},local={},select={}{}", name, budget, window, sinks, local,
                       select_text(of_query_heads), dense_below_text(dense_below));
  }

  bool fixed() const { return recall == 0; }
  /// Documents shorter than so many tokens take all their pairs.
  std::int64_t all_below() const { return recall == 1 ? std::int64_t{1} << 40 : dense_below; }
  /// The first block distances, which slashes hold whatever their mass.
  std::int64_t local_slashes() const {
    // Keys at most local − 1 tokens before a query lie at most this many blocks before its own.
    return local == 0 ? 0 : ceil_divide(local - 1, block_tokens) + 1;
  }

  void check(std::int64_t tokens, bool packed, std::string_view context) const {
    require(!packed || local > 0,
            "{}: packed documents share blocks on the diagonal, which all of them have: use local=1 or more",
            context);
    require(window <= tokens,
            "{}: the window of {} queries is longer than the sequence of {} tokens: use window={} or less",
            context, window, tokens, tokens);
    if (!fixed()) return;
    const std::int64_t blocks = blocks_of(tokens);
    require(verticals <= tokens,
            "{}: a sequence of {} tokens has no {} verticals: use verticals={} or less, or a longer sequence",
            context, tokens, verticals, tokens);
    require(
        slashes <= blocks,
        "{}: a sequence of {} tokens has {} block diagonals: use slashes={} or less, or a longer sequence",
        context, tokens, blocks, blocks);
    // No sequence has more tokens than it has, nor block diagonals: what it lacks is not asked for.
    const std::int64_t sinks_there = std::min(sinks, tokens), local_there = std::min(local_slashes(), blocks);
    require(sinks_there <= verticals,
            "{}: {} sinks are among {} verticals: use verticals={} or more, or fewer sinks", context,
            sinks_there, verticals, sinks_there);
    require(
        local_there <= slashes,
        "{}: keys closer than {} tokens take {} of {} slashes: use slashes={} or more, or a smaller local",
        context, local, local_there, slashes, local_there);
  }

  SelectionMemory memory(const SelectionShape& shape) const {
    const std::int64_t blocks = blocks_of(shape.tokens), lists = shape.lists(of_query_heads);
    const auto element = static_cast<std::int64_t>(shape.element), width = std::int64_t{shape.head_dim};
    const std::int64_t columns = all_columns(shape.tokens, shape.packed),
                       distances = chosen(shape.tokens).distances;
    const std::int64_t word_bits = 32,
                       // Documents that are observed have the begin of a block in them: there are fewer than
                       // blocks, and they share no more than that.
        documents = shape.packed ? blocks : 1, of_documents = shape.packed ? 2 * blocks : blocks,
                       words = lists * (shape.packed ? blocks : 1) * ceil_divide(blocks, word_bits),
                       key_words = word_bytes * lists * ceil_divide(shape.tokens, word_bits),
                       slash_words = word_bytes * lists * ceil_divide(of_documents, word_bits);
    const std::int64_t listed = std::max(most_listed(blocks, distances),
                                         shape.packed ? most_dense_blocks(shape.tokens, dense_below) : 0);
    SelectionMemory memory = memory_of_passes(shape, {lists, words, lists * listed, columns});
    if (recall == 1) return memory;
    const std::int64_t items = MassPlaces{shape.tokens, of_documents}.all(),
                       masses = count_bytes * lists * items;
    const std::int64_t queries = shape.all_heads() * window * documents;
    const std::int64_t scores = queries * (width * element + word_bytes) +
                                shape.all_heads() * window * word_bytes * shape.rows,
                       // Queries in fp32 for the kernel that makes scores; then sums and their inverses.
        fp32_queries = queries * width * word_bytes, sums = queries * (count_bytes + word_bytes);
    // Of each document, for keys and for slashes.
    const std::int64_t choices = lists * documents * choice_bytes(items, 2);
    // Bits of keys, and of the slashes of documents, lie there from before the scores are made until both are
    // chosen, then beside bits of both at once where they share a budget. Those of slashes of one document
    // are the selection's own. The scores are gone by then.
    const std::int64_t words_chosen = key_words + (shape.packed ? slash_words : 0),
                       words_of_both = joint ? key_words + slash_words : 0;
    memory.workspace = std::max(
        {memory.workspace, words_chosen + scores + std::max(fp32_queries, sums + masses * (joint ? 2 : 1)),
         words_chosen + masses + words_of_both + choices});
    return memory;
  }

  SelectionForm form(std::int64_t tokens, bool packed) const {
    return {.of_query_heads = of_query_heads, .columns = all_columns(tokens, packed)};
  }

  double density(std::int64_t tokens) const {
    const auto [columns, distances] = chosen(tokens);
    const double of_slashes = share_of_nearest(tokens, block_tokens, distances),
                 of_columns = std::min(1.0, static_cast<double>(columns) / static_cast<double>(tokens));
    return of_slashes + (1 - of_slashes) * of_columns;
  }

  template <class Exec, class T>
  std::unique_ptr<Pattern<Exec, T>> make() const;

  friend bool operator==(const VerticalSlash&, const VerticalSlash&) = default;

 private:
  /// What a list holds of one document, as it is predicted.
  struct Chosen {
    std::int64_t columns, distances;
  };
  Chosen chosen(std::int64_t tokens) const {
    const std::int64_t blocks = blocks_of(tokens);
    if (tokens < all_below()) return {0, blocks};
    if (fixed()) return {verticals, slashes};
    return {predicted_of(tokens), predicted_of(blocks)};
  }
  /// Columns of a list. With documents, each of which has the fixed number, as many as masses are taken to
  /// choose.
  std::int64_t all_columns(std::int64_t tokens, bool packed) const {
    const std::int64_t columns = chosen(tokens).columns;
    return packed && columns > 0 ? std::min(tokens, std::max(columns, predicted_of(tokens))) : columns;
  }
};

}  // namespace annulus::sparsity
