
#include <Kokkos_Core.hpp>

#include <annulus/base/division.hpp>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/selection.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace selection_detail {  // named: device compilers want lambdas and their captures to have linkage

/// The blocks of one list, as kernels see them: rows and columns are of blocks of block_tokens.
struct ListBlocks {
  const std::uint32_t* words;  // of the list
  std::int64_t row_words;      // 0: one pattern row for all
  std::int64_t rows_of_bit;    // block rows that share a pattern row, and block columns that share a bit

  KOKKOS_FUNCTION std::int64_t pattern_row(std::int64_t row) const {
    return rows_of_bit == 1 ? row : row / rows_of_bit;
  }
  /// Bits of block row `row`, of which the first pattern_row(row) + 1 are causal.
  KOKKOS_FUNCTION const std::uint32_t* of_row(std::int64_t row) const {
    return words + pattern_row(row) * row_words;
  }
  KOKKOS_FUNCTION bool holds(std::int64_t row, std::int64_t block_column) const {
    return bit_of(of_row(row), pattern_row(row) - pattern_row(block_column));
  }
  /// Causal blocks of a row.
  KOKKOS_FUNCTION std::int64_t count(std::int64_t row) const {
    const std::int64_t own = pattern_row(row), bits = bits_below(of_row(row), own + 1);
    if (rows_of_bit == 1 || !holds(row, row)) return bits * rows_of_bit;
    return (bits - 1) * rows_of_bit + row % rows_of_bit + 1;
  }
  /// Calls f(column) for these, from the last one on.
  template <class F>
  KOKKOS_FUNCTION void for_each(std::int64_t row, const F& f) const {
    const std::int64_t own = pattern_row(row);
    for_each_bit_below(of_row(row), own + 1, [&](std::int64_t distance) {
      const std::int64_t first = (own - distance) * rows_of_bit, last = first + rows_of_bit - 1;
      for (std::int64_t column = last < row ? last : row; column >= first; --column) f(column);
    });
  }
};

/// The blocks of all lists.
template <class Exec>
struct BlocksOfLists {
  Array3<std::uint32_t, Exec> words;
  std::int64_t rows_of_bit;
  bool of_all_rows;

  explicit BlocksOfLists(const Selection<Exec>& selection)
      : words(selection.blocks.view()),
        rows_of_bit(selection.block / block_tokens),
        of_all_rows(selection.pattern_rows == PatternRows::all) {}
  KOKKOS_FUNCTION ListBlocks operator()(std::int64_t list) const {
    return {&words(list, 0, 0), of_all_rows ? 0 : static_cast<std::int64_t>(words.extent(2)), rows_of_bit};
  }
};

/// starts (lists · block rows + 1): where each row of each list begins in the columns of all.
template <class Exec>
void scan_rows(const Exec& exec, const BlocksOfLists<Exec>& blocks, std::int64_t lists, std::int64_t rows,
               const Array1<std::int64_t, Exec>& starts) {
  Kokkos::parallel_scan(
      "annulus::sparsity::scan_rows", Kokkos::RangePolicy<Exec>(exec, 0, lists * rows + 1),
      KOKKOS_LAMBDA(const std::int64_t i, std::int64_t& listed, const bool last) {
        if (last) starts(i) = listed;
        if (i < lists * rows) listed += blocks(i / rows).count(i % rows);
      });
}

template <class Exec>
void fill_columns(const Exec& exec, const BlocksOfLists<Exec>& blocks, std::int64_t lists, std::int64_t rows,
                  const Array1<std::int64_t, Exec>& starts, const Array1<std::int64_t, Exec>& columns) {
  Kokkos::parallel_for(
      "annulus::sparsity::fill_columns", Kokkos::RangePolicy<Exec>(exec, 0, lists * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const ListBlocks of_list = blocks(i / rows);
        const std::int64_t row = i % rows;
        std::int64_t at = starts(i + 1);
        of_list.for_each(row, [&](std::int64_t column) { columns(--at) = column; });
      });
}

/// row_starts (lists, block rows + 1): each list has its own end.
template <class Exec>
void spread_starts(const Exec& exec, const Array1<std::int64_t, Exec>& starts, std::int64_t rows,
                   const Array1<std::int64_t, Exec>& row_starts) {
  Kokkos::parallel_for(
      "annulus::sparsity::spread_starts", Kokkos::RangePolicy<Exec>(exec, 0, row_starts.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        row_starts(i) = starts(i / (rows + 1) * rows + i % (rows + 1));
      });
}

template <class Exec>
void widen(const Exec& exec, const Array2<std::int32_t, Exec>& from, const Array2<std::int64_t, Exec>& to) {
  Kokkos::parallel_for(
      "annulus::sparsity::widen", Kokkos::RangePolicy<Exec>(exec, 0, from.size()),
      KOKKOS_LAMBDA(const std::int64_t i) { to.data()[i] = from.data()[i]; });
}

/// Queries of a block row, of those before `end`.
KOKKOS_INLINE_FUNCTION std::int64_t rows_of(std::int64_t row, std::int64_t end) {
  const std::int64_t rest = end - row * block_tokens;
  return rest < 0 ? 0 : rest < block_tokens ? rest : block_tokens;
}

/// The documents of a list's sequence.
struct ListDocuments {
  DocumentSpans spans;
  std::int64_t sequence;
  KOKKOS_FUNCTION DocumentSpan of(std::int64_t position) const { return spans.of(sequence, position); }
};

KOKKOS_INLINE_FUNCTION std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// Pairs of block row `row` in the blocks of a list, of the queries before `end`.
KOKKOS_INLINE_FUNCTION std::int64_t block_pairs(const ListBlocks& blocks, const ListDocuments& documents,
                                                std::int64_t row, std::int64_t end) {
  const std::int64_t first = row * block_tokens, behind = first + rows_of(row, end);
  // Blocks off the diagonal have pairs of the document of the row's first token alone.
  const DocumentSpan document = documents.of(first);
  const std::int64_t queries = smaller(document.end, behind) - first,
                     tile = blocks.rows_of_bit * block_tokens, own = first / tile,
                     cut = document.begin / tile;  // the tile in which the document begins
  const std::uint32_t* const bits = blocks.of_row(row);
  const int diagonal = bit_of(bits, 0) ? 1 : 0;
  std::int64_t keys = 0;
  if (diagonal > 0) keys += first - (cut < own ? own * tile : document.begin);
  if (cut < own) keys += (bits_below(bits, own - cut) - diagonal) * tile;
  if (cut < own && bit_of(bits, own - cut)) keys += tile - document.begin % tile;
  std::int64_t pairs = keys * queries;
  for (std::int64_t at = first; diagonal > 0 && at < behind;) {
    const std::int64_t next = smaller(documents.of(at).end, behind), here = next - at;
    pairs += here * (here + 1) / 2;
    at = next;
  }
  return pairs;
}

/// Queries before `end` that see the column, which lies before it, and do not have its block.
KOKKOS_INLINE_FUNCTION std::int64_t column_pairs(const ListBlocks& blocks, const ListDocuments& documents,
                                                 std::int64_t column, std::int64_t end) {
  const std::int64_t behind = smaller(documents.of(column).end, end);
  const std::int64_t own = column / block_tokens, last = (behind - 1) / block_tokens;
  std::int64_t without = 0;  // block rows from its own one on that do not have its block
  if (blocks.row_words == 0 && blocks.rows_of_bit == 1) {  // slashes
    without = last - own + 1 - bits_below(blocks.words, last - own + 1);
  } else {
    for (std::int64_t row = own; row <= last; ++row) without += blocks.holds(row, own) ? 0 : 1;
  }
  std::int64_t pairs = without * block_tokens;
  if (!blocks.holds(own, own)) pairs -= column % block_tokens;
  if (!blocks.holds(last, own)) pairs -= block_tokens - rows_of(last, behind);
  return pairs;
}

/// Where pairs of lists are counted.
struct PairsOfLists {
  std::int64_t* counts;
  std::int64_t stride;  // from the count of a list to that of the next; 0: all have one
  std::int64_t factor;  // that a pair counts

  KOKKOS_FUNCTION void add(std::int64_t list, std::int64_t pairs) const {
    Kokkos::atomic_add(counts + list * stride, factor * pairs);
  }
};

template <class Exec>
void count_pairs_of(const Exec& exec, const BlocksOfLists<Exec>& blocks, const DocumentSpans& spans,
                    std::int64_t lists_of_sequence, const Array2<std::int32_t, Exec>& columns,
                    std::int64_t end, const PairsOfLists& counts) {
  const auto rows = static_cast<std::int64_t>((end + block_tokens - 1) / block_tokens);
  const auto most = static_cast<std::int64_t>(columns.extent(1)), items = rows + most;
  const auto lists = static_cast<std::int64_t>(blocks.words.extent(0));
  Kokkos::parallel_for(
      "annulus::sparsity::count_selected", Kokkos::RangePolicy<Exec>(exec, 0, lists * items),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / items, item = i % items;
        const ListBlocks of_list = blocks(list);
        const ListDocuments documents{spans, list / lists_of_sequence};
        std::int64_t pairs = 0;
        if (item < rows) {
          pairs = block_pairs(of_list, documents, item, end);
        } else if (columns(list, item - rows) < end) {
          pairs = column_pairs(of_list, documents, columns(list, item - rows), end);
        }
        if (pairs > 0) counts.add(list, pairs);
      });
}

/// Adds the pairs of a selection whose bits are of queries: words (lists, tokens, words).
template <class Exec>
void count_pairs_of_queries(const Exec& exec, const Array3<std::uint32_t, Exec>& words, std::int64_t block,
                            const DocumentSpans& spans, std::int64_t lists_of_sequence, std::int64_t end,
                            const PairsOfLists& counts) {
  const std::int64_t rows = ceil_divide(end, block_tokens);
  Kokkos::parallel_for(
      "annulus::sparsity::count_selected",
      Kokkos::RangePolicy<Exec>(exec, 0, static_cast<std::int64_t>(words.extent(0)) * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / rows, first = i % rows * block_tokens, own = first / block;
        const ListDocuments documents{spans, list / lists_of_sequence};
        std::int64_t pairs = 0;
        for (std::int64_t query = first; query < first + rows_of(i % rows, end); ++query) {
          const std::uint32_t* const of_query = &words(list, query, 0);
          const std::int64_t begin = documents.of(query).begin, cut = begin / block;  // its first block
          pairs += bits_below(of_query, own) * block;
          if (cut < own && bit_of(of_query, cut)) pairs -= begin % block;
          if (bit_of(of_query, own)) pairs += query - (begin > own * block ? begin : own * block) + 1;
        }
        counts.add(list, pairs);
      });
}

template <class Exec>
void count(const Exec& exec, const Selection<Exec>& selection, std::int64_t end, const PairsOfLists& counts) {
  if (selection.pattern_rows == PatternRows::of_query) {
    count_pairs_of_queries<Exec>(exec, *selection.blocks, selection.block, selection.spans(), selection.lists,
                                 end, counts);
  } else {
    count_pairs_of<Exec>(exec, BlocksOfLists<Exec>(selection), selection.spans(), selection.lists,
                         *selection.columns, end, counts);
  }
}

}  // namespace selection_detail

template <class Exec>
std::int64_t count_listed(const Exec& exec, const Selection<Exec>& selection) {
  const selection_detail::BlocksOfLists<Exec> blocks(selection);
  const std::int64_t rows = selection.block_rows();
  std::int64_t listed = 0;
  Kokkos::parallel_reduce(
      "annulus::sparsity::count_listed", Kokkos::RangePolicy<Exec>(exec, 0, selection.all_lists() * rows),
      KOKKOS_LAMBDA(const std::int64_t i, std::int64_t& sum) { sum += blocks(i / rows).count(i % rows); },
      listed);
  return listed;
}

template <class Exec>
Lists<Exec> expand(const Exec& exec, const Selection<Exec>& selection) {
  using namespace selection_detail;  // NOLINT(google-build-using-namespace): this file's own helpers
  const Region region("annulus::sparsity::expand");
  const std::int64_t lists = selection.all_lists(), rows = selection.block_rows();
  const BlocksOfLists<Exec> blocks(selection);
  using Numbers = Owned<Array1<std::int64_t, Exec>>;
  constexpr auto workspace = MemoryCategory::workspace;
  if (selection.pattern_rows == PatternRows::of_query)
    return {.heads_of_list = selection.heads / selection.lists,
            .block = selection.block,
            .query_blocks = selection.blocks.view().data(),
            .row_starts = {},
            .block_columns = {},
            .columns = {}};
  const auto starts = Numbers::uninitialized(exec, workspace, "annulus::sparsity::starts", lists * rows + 1);
  Lists<Exec> made{.heads_of_list = selection.heads / selection.lists,
                   .block = block_tokens,
                   .query_blocks = nullptr,
                   .row_starts = Numbers::uninitialized(exec, workspace, "annulus::sparsity::row_starts",
                                                        lists * (rows + 1)),
                   .block_columns = Numbers::uninitialized(
                       exec, workspace, "annulus::sparsity::block_columns", selection.listed),
                   .columns = Owned<Array2<std::int64_t, Exec>>::uninitialized(
                       exec, workspace, "annulus::sparsity::columns", lists, selection.most_columns())};
  scan_rows<Exec>(exec, blocks, lists, rows, *starts);
  fill_columns<Exec>(exec, blocks, lists, rows, *starts, *made.block_columns);
  spread_starts<Exec>(exec, *starts, rows, *made.row_starts);
  widen<Exec>(exec, *selection.columns, *made.columns);
  return made;
}

template <class Exec>
void count_selected(const Exec& exec, const Selection<Exec>& selection, std::int64_t end,
                    std::int64_t* count) {
  const std::int64_t group = selection.heads / selection.lists;
  selection_detail::count<Exec>(exec, selection, end, {.counts = count, .stride = 0, .factor = group});
}

template <class Exec>
void count_selected_of_lists(const Exec& exec, const Selection<Exec>& selection,
                             const Array1<std::int64_t, Exec>& counts) {
  selection_detail::count<Exec>(exec, selection, selection.tokens,
                                {.counts = counts.data(), .stride = 1, .factor = 1});
}

#define ANNULUS_INSTANTIATE(EXEC)                                                                       \
  template std::int64_t count_listed<EXEC>(const EXEC&, const Selection<EXEC>&);                        \
  template Lists<EXEC> expand<EXEC>(const EXEC&, const Selection<EXEC>&);                               \
  template void count_selected<EXEC>(const EXEC&, const Selection<EXEC>&, std::int64_t, std::int64_t*); \
  template void count_selected_of_lists<EXEC>(const EXEC&, const Selection<EXEC>&,                      \
                                              const Array1<std::int64_t, EXEC>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
