#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/documents.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::sparsity {

/// Which queries share a row of bits of a selection.
enum class PatternRows : std::uint8_t { all, of_block, of_query };

/// K and V of a selection's columns, one after the other as SparseAttention has them: nothing before a
/// forward pass has taken them.
template <class Exec>
struct KeptColumns {
  Owned<Array1<std::byte, Exec>> keys;
};

/// What a pattern chose for one layer, in memory of the execution space, the same on all ranks. A pair
/// (query, key) is selected where the mask allows it and its block, or its key as a column, is. Kept for the
/// backward pass and for what is computed again.
template <class Exec>
struct Selection {
  std::int64_t tokens = 0;
  /// The documents of the sequences; null: each sequence is one document.
  std::shared_ptr<const Documents<Exec>> documents = nullptr;
  int batch = 1, heads = 1;  ///< of queries
  int lists = 1;             ///< selections of a sequence; heads / lists query heads share one
  /// Blocks, (batch · lists, pattern rows, words of 32 bits). Of block rows, and of all queries together: bit
  /// d is the block d blocks before the diagonal, of `block`² pairs; bits before the first block are not
  /// read. Of queries, by their global positions: bit b is block b of `block` keys, at most the query's own.
  Owned<Array3<std::uint32_t, Exec>> blocks = {};
  std::int64_t block = block_tokens;  ///< tokens, a multiple of block_tokens
  PatternRows pattern_rows = PatternRows::all;
  /// Positions of keys that all later queries of their documents see, (batch · lists, most columns),
  /// increasing, filled up with `tokens`.
  Owned<Array2<std::int32_t, Exec>> columns = {};
  /// What passes keep of the columns; null: nothing. (Selections are constant, what is kept comes later.)
  std::shared_ptr<KeptColumns<Exec>> kept = nullptr;
  std::int64_t listed = 0;  ///< blocks of block_tokens of all lists together, or more; none of queries

  /// Block rows of a sequence in blocks of block_tokens, which lists have.
  std::int64_t block_rows() const { return (tokens + block_tokens - 1) / block_tokens; }
  /// Block rows of a sequence in blocks of `block`.
  std::int64_t pattern_blocks() const { return (tokens + block - 1) / block; }
  DocumentSpans spans() const {
    return documents != nullptr ? documents->spans() : DocumentSpans{.tokens = tokens};
  }
  std::int64_t all_lists() const { return std::int64_t{batch} * lists; }
  std::int64_t most_columns() const { return static_cast<std::int64_t>(columns.view().extent(1)); }
  std::size_t bytes() const {
    return blocks.view().size() * sizeof(std::uint32_t) + columns.view().size() * sizeof(std::int32_t) +
           (kept != nullptr ? kept->keys.view().size() : 0);
  }
};

/// A selection in the form that kernels read; made for a pass and dropped after it.
template <class Exec>
struct Lists {
  std::int64_t heads_of_list;                       ///< query heads that select together
  std::int64_t block = block_tokens;                ///< tokens
  const std::uint32_t* query_blocks = nullptr;      ///< the selection's bits, where they are of queries
  Owned<Array1<std::int64_t, Exec>> row_starts;     ///< (batch, lists, block rows + 1)
  Owned<Array1<std::int64_t, Exec>> block_columns;  ///< of all lists
  Owned<Array2<std::int64_t, Exec>> columns;        ///< as in the Selection

  executor::BlockLists blocks() const {
    return {.block_size = block,
            .heads_of_list = heads_of_list,
            .block_row_starts = row_starts.view().data(),
            .block_columns = block_columns.view().data(),
            .query_blocks = query_blocks};
  }
};

/// The blocks of block_tokens that a selection of block rows or slashes holds, of all lists together. Waits
/// for `exec`.
template <class Exec>
std::int64_t count_listed(const Exec& exec, const Selection<Exec>& selection);

/// Block lists of the causal blocks of a selection, and its columns; the bits themselves where they are of
/// queries.
template <class Exec>
Lists<Exec> expand(const Exec& exec, const Selection<Exec>& selection);

/// Adds the causal pairs inside documents, of all query heads, that are selected, of the queries before
/// position `end`, to *count, on the execution space: counted from the selection alone, whatever the layout.
template <class Exec>
void count_selected(const Exec& exec, const Selection<Exec>& selection, std::int64_t end,
                    std::int64_t* count);

/// Adds the causal pairs inside documents that are selected, of one query head of each list and of all
/// queries, to counts (batch · lists), on the execution space.
template <class Exec>
void count_selected_of_lists(const Exec& exec, const Selection<Exec>& selection,
                             const Array1<std::int64_t, Exec>& counts);

}  // namespace annulus::sparsity
