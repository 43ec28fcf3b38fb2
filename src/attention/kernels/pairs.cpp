#include "attention/kernels/pairs.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <numeric>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention {

namespace pairs_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Keys of a rank in [begin, end).
KOKKOS_INLINE_FUNCTION std::int64_t keys_in(const KeyPositions& keys, const KeyRange& range) {
  return range.empty() ? 0 : keys.rows_below(range.end) - keys.rows_below(range.begin);
}

KOKKOS_INLINE_FUNCTION KeyRange both(const KeyRange& a, const KeyRange& b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/// Keys of a rank by block columns.
struct KeysOfColumns {
  KeyPositions keys;
  std::int64_t block_size, tokens;
  const std::int32_t* counts;  ///< (block columns), null without blocks

  KOKKOS_FUNCTION KeyRange range(std::int64_t column) const {
    const std::int64_t begin = column * block_size, end = begin + block_size;
    return {begin, end < tokens ? end : tokens};
  }
  /// Those of a column in `seen`. Most columns lie in it, or on this rank, whole: searches take long.
  KOKKOS_FUNCTION std::int64_t in(std::int64_t column, const KeyRange& seen) const {
    const KeyRange block = range(column), part = both(seen, block);
    const std::int64_t count = counts[column];
    if (count == 0 || part.empty()) return 0;
    if (part.begin == block.begin && part.end == block.end) return count;
    return count == block.end - block.begin ? part.end - part.begin : keys_in(keys, part);
  }
};

/// Pairs of one query that has blocks of its own.
KOKKOS_INLINE_FUNCTION std::int64_t pairs_of_query(const MaskRule& mask, std::int64_t position,
                                                   const KeysOfColumns& keys) {
  const KeyRange seen = mask.keys(position);
  if (seen.empty()) return 0;
  const std::int64_t first = seen.begin / mask.block_size, last = (seen.end - 1) / mask.block_size;
  const std::uint32_t* const words = mask.query_blocks + position * mask.words_of_query();
  std::int64_t pairs = 0;
  for (std::int64_t word = first / 32; word <= last / 32; ++word) {
    for (std::uint32_t left = words[word]; left != 0; left &= left - 1)
      pairs += keys.in(word * 32 + Kokkos::countr_zero(left), seen);
  }
  return pairs;
}

/// Block columns that all queries of a block row see whole.
struct WholeColumns {
  std::int64_t begin, end;

  /// `first` and `last`: positions of the first and the last query. Both ends of what a query sees never
  /// decrease.
  KOKKOS_FUNCTION static WholeColumns of(const MaskRule& mask, std::int64_t first, std::int64_t last) {
    const KeyRange of_first = mask.keys(first), of_last = mask.keys(last);
    const std::int64_t begin = ceil_divide(of_last.begin, mask.block_size),
                       end = of_first.end == mask.tokens ? mask.block_rows() : of_first.end / mask.block_size;
    return {begin, end < begin ? begin : end};
  }
  KOKKOS_FUNCTION bool contain(std::int64_t column) const { return begin <= column && column < end; }
};

/// What is counted: heads that have a block list and a list of keys in common once.
struct Counting {
  MaskRule mask;
  PositionMap queries;
  KeysOfColumns keys;
  std::int64_t alike;                 ///< heads that have the same pairs
  std::int64_t heads_of_keys;         ///< heads with the same list of keys
  std::int64_t first_row, row_count;  ///< block rows that hold queries of this rank, and some that may not

  KOKKOS_FUNCTION bool has_lists() const { return mask.block_row_starts != nullptr; }
  KOKKOS_FUNCTION KeysOfColumns keys_of(std::int64_t head) const {
    KeysOfColumns of = keys;
    if (of.keys.listed != nullptr) {
      of.keys.listed += head / heads_of_keys * of.keys.count();
      if (of.counts != nullptr) of.counts += head / heads_of_keys * mask.block_rows();
    }
    return of;
  }
  KOKKOS_FUNCTION std::int64_t queries_below(std::int64_t block_row) const {
    return queries.rows_below(block_row * mask.block_size);
  }
  /// Listed blocks are what a query sees, or what it does not see.
  KOKKOS_FUNCTION std::int64_t sign_of_listed() const { return mask.blocks_excluded ? -1 : 1; }
};

/// Pairs of listed blocks that all queries of a block row see whole: row i modulo `row_count`.
struct PairsOfWholeBlocks : Counting {
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const {
    const std::int64_t head = i / row_count * alike, row = first_row + i % row_count;
    const std::int64_t begin = queries_below(row), end = queries_below(row + 1);
    if (begin == end) return 0;
    const MaskRule own = mask.of_head(head);
    const WholeColumns whole = WholeColumns::of(own, queries(begin), queries(end - 1));
    const std::int32_t* const counts = keys_of(head).counts;
    std::int64_t listed = 0;
    for (std::int64_t place = own.block_row_starts[row]; place < own.block_row_starts[row + 1]; ++place) {
      const std::int64_t column = own.block_columns[place];
      if (whole.contain(column)) listed += counts[column];
    }
    return sign_of_listed() * (end - begin) * listed;
  }
};

/// The other pairs of a query: row i modulo the rows of this rank.
struct OtherPairs : Counting {
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const {
    const std::int64_t head = i / queries.count * alike, position = queries(i % queries.count);
    const MaskRule own = mask.of_head(head);
    const KeysOfColumns of = keys_of(head);
    if (own.query_blocks != nullptr) return pairs_of_query(own, position, of);
    const KeyRange seen = own.keys(position);
    std::int64_t pairs = !has_lists() || mask.blocks_excluded ? keys_in(of.keys, seen) : 0;
    if (!has_lists()) return pairs;
    const std::int64_t row = position / mask.block_size;
    const WholeColumns whole =
        WholeColumns::of(own, queries(queries_below(row)), queries(queries_below(row + 1) - 1));
    const auto add = [&](std::int64_t place) {
      pairs += sign_of_listed() * of.in(own.block_columns[place], seen);
    };
    // Columns increase, so blocks that are cut lie at both ends.
    std::int64_t begin = own.block_row_starts[row], end = own.block_row_starts[row + 1];
    for (; end > begin && own.block_columns[end - 1] >= whole.end; --end) add(end - 1);
    for (; begin < end && own.block_columns[begin] < whole.begin; ++begin) add(begin);
    return pairs;
  }
};

/// Adds factor · (pairs(0) + … + pairs(items − 1)) to *count.
template <class Exec, class Pairs>
void add_up(const Exec& exec, const char* name, std::int64_t items, std::int64_t factor, std::int64_t* count,
            const Pairs& pairs) {
  constexpr std::int64_t items_of_team = 128;
  using Policy = Kokkos::TeamPolicy<Exec>;
  Kokkos::parallel_for(
      name, Policy(exec, static_cast<int>(ceil_divide(items, items_of_team)), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t begin = team.league_rank() * items_of_team, end = begin + items_of_team;
        std::int64_t sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, begin, end < items ? end : items),
            [&](const std::int64_t i, std::int64_t& mine) { mine += pairs(i); }, sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          if (sum != 0) Kokkos::atomic_add(count, factor * sum);
        });
      });
}

/// The keys of each block column, (key lists, block columns); nothing without blocks.
template <class Exec>
Owned<Array2<std::int32_t, Exec>> count_keys_of_columns(const Exec& exec, const PairsOf& what) {
  if (!what.mask.has_blocks()) return {};
  const std::int64_t lists = std::max<std::int64_t>(what.key_heads, 1), columns = what.mask.block_rows();
  auto counts = Owned<Array2<std::int32_t, Exec>>::uninitialized(
      exec, MemoryCategory::workspace, "annulus::attention::keys_of_columns", lists, columns);
  const Array2<std::int32_t, Exec> of = *counts;
  const KeysOfColumns all{what.keys, what.mask.block_size, what.mask.tokens, nullptr};
  Kokkos::parallel_for(
      "annulus::attention::keys_of_columns", Kokkos::RangePolicy<Exec>(exec, 0, lists * columns),
      KOKKOS_LAMBDA(const std::int64_t i) {
        KeyPositions keys = all.keys;
        if (keys.listed != nullptr) keys.listed += i / columns * keys.count();
        of(i / columns, i % columns) = static_cast<std::int32_t>(keys_in(keys, all.range(i % columns)));
      });
  return counts;
}

}  // namespace pairs_detail

template <class Exec>
void count_pairs(const Exec& exec, const PairsOf& what, std::int64_t* count) {
  require(what.mask.dilation == 1, "pairs of a mask with dilation {} are not counted on the device",
          what.mask.dilation);
  const PositionMap& positions = what.q_positions;
  const std::int64_t rows = positions.count;
  if (rows == 0 || what.keys.empty() || what.heads == 0) return;
  // Heads that have a block list and a list of keys in common have the same pairs.
  const std::int64_t group = what.key_heads > 0 ? what.heads / what.key_heads : what.heads;
  const std::int64_t of_list = what.mask.lists_of_heads() ? what.mask.heads_of_list : what.heads;
  const std::int64_t alike = what.keys.listed != nullptr ? std::gcd(of_list, group) : of_list;
  const auto keys_of_columns = pairs_detail::count_keys_of_columns(exec, what);
  const std::int64_t size = what.mask.block_size, lists = what.heads / alike;
  pairs_detail::Counting counting{
      what.mask,
      positions,
      {what.keys, size, what.mask.tokens, what.mask.has_blocks() ? (*keys_of_columns).data() : nullptr},
      alike,
      group,
      0,
      0};
  if (counting.has_lists()) {
    counting.first_row = positions.front() / size;
    counting.row_count = positions.back() / size - counting.first_row + 1;
    pairs_detail::add_up(exec, "annulus::attention::count_pairs_of_whole_blocks", lists * counting.row_count,
                         alike, count, pairs_detail::PairsOfWholeBlocks{counting});
  }
  pairs_detail::add_up(exec, "annulus::attention::count_pairs_of_queries", lists * rows, alike, count,
                       pairs_detail::OtherPairs{counting});
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, count_pairs)

}  // namespace annulus::attention
