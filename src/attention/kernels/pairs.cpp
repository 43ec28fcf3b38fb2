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
};

/// Where a block row's list has these columns: places begin … end − 1 of all lists.
struct ListedRow {
  std::int64_t begin, whole, behind_whole, end;

  /// Columns increase, so blocks that are cut lie at both ends.
  KOKKOS_FUNCTION static ListedRow of(const MaskRule& mask, std::int64_t row, const WholeColumns& columns) {
    const std::int64_t begin = mask.block_row_starts[row], end = mask.block_row_starts[row + 1];
    std::int64_t whole = begin, behind = end;
    while (whole < end && mask.block_columns[whole] < columns.begin) ++whole;
    while (behind > whole && mask.block_columns[behind - 1] >= columns.end) --behind;
    return {begin, whole, behind, end};
  }
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
  /// Pairs of one query of a block row in the blocks that are cut.
  KOKKOS_FUNCTION std::int64_t in_cut_blocks(const MaskRule& own, const ListedRow& row,
                                             const KeysOfColumns& of, const KeyRange& seen) const {
    std::int64_t pairs = 0;
    for (std::int64_t place = row.begin; place < row.whole; ++place)
      pairs += of.in(own.block_columns[place], seen);
    for (std::int64_t place = row.behind_whole; place < row.end; ++place)
      pairs += of.in(own.block_columns[place], seen);
    return pairs;
  }
  /// The list of a block row, of which queries begin … end − 1 are this rank's.
  KOKKOS_FUNCTION ListedRow listed(const MaskRule& own, std::int64_t row, std::int64_t begin,
                                   std::int64_t end) const {
    return ListedRow::of(own, row, WholeColumns::of(own, queries(begin), queries(end - 1)));
  }
};

/// Keys below positions that do not decrease: listed ones are walked through, because searches take long.
class KeysBelow {
 public:
  KOKKOS_FUNCTION explicit KeysBelow(const KeyPositions& keys) : keys_(keys) {}

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t position) {
    if (keys_.listed == nullptr) return keys_.rows_below(position);
    if (below_ < 0) below_ = keys_.rows_below(position);
    while (below_ < keys_.count() && keys_(below_) < position) ++below_;
    return below_;
  }

 private:
  KeyPositions keys_;
  std::int64_t below_ = -1;
};

/// Pairs of a part of a block row in listed blocks, or in all but these where they are excluded: part i
/// modulo `parts` of row i / parts modulo `row_count`. What its queries have in common is found once.
struct PairsOfBlockRows : Counting {
  static constexpr std::int64_t parts = 4;  // so that a device has threads enough

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const {
    const std::int64_t part = i % parts, of_list = i / parts / row_count,
                       row = first_row + i / parts % row_count;
    const std::int64_t begin = queries_below(row), end = queries_below(row + 1), count = end - begin;
    if (begin == end) return 0;
    const MaskRule own = mask.of_head(of_list * alike);
    const KeysOfColumns of = keys_of(of_list * alike);
    const ListedRow places = listed(own, row, begin, end);
    std::int64_t listed_pairs = 0, all_pairs = 0;
    if (part == 0) {
      for (std::int64_t place = places.whole; place < places.behind_whole; ++place)
        listed_pairs += count * of.counts[own.block_columns[place]];
    }
    KeysBelow below_begin(of.keys), below_end(of.keys);
    for (std::int64_t query = begin + part * count / parts; query < begin + (part + 1) * count / parts;
         ++query) {
      const KeyRange seen = own.keys(queries(query));
      listed_pairs += in_cut_blocks(own, places, of, seen);
      if (mask.blocks_excluded && !seen.empty()) all_pairs += below_end(seen.end) - below_begin(seen.begin);
    }
    return mask.blocks_excluded ? all_pairs - listed_pairs : listed_pairs;
  }
};

/// Pairs of a query without lists of blocks: row i modulo the rows of this rank.
struct PairsOfQueries : Counting {
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const {
    const std::int64_t head = i / queries.count * alike, position = queries(i % queries.count);
    const MaskRule own = mask.of_head(head);
    const KeysOfColumns of = keys_of(head);
    if (own.query_blocks != nullptr) return pairs_of_query(own, position, of);
    return keys_in(of.keys, own.keys(position));
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
    pairs_detail::add_up(exec, "annulus::attention::count_pairs_of_block_rows",
                         lists * counting.row_count * pairs_detail::PairsOfBlockRows::parts, alike, count,
                         pairs_detail::PairsOfBlockRows{counting});
  } else {
    pairs_detail::add_up(exec, "annulus::attention::count_pairs_of_queries", lists * rows, alike, count,
                         pairs_detail::PairsOfQueries{counting});
  }
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, count_pairs)

}  // namespace annulus::attention
