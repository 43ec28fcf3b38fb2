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

/// Rows begin … end − 1 of a rank's queries.
struct QueryRows {
  PositionMap positions;
  std::int64_t begin, end;
  KOKKOS_FUNCTION std::int64_t count() const { return end - begin; }
};

/// What queries of one block row see of its listed blocks: places in block_columns.
struct ListedBlocks {
  std::int64_t begin = 0, end = 0;              ///< of all that any query sees something of
  std::int64_t whole_begin = 0, whole_end = 0;  ///< of those that every query sees whole

  KOKKOS_FUNCTION static ListedBlocks of(const MaskRule& mask, std::int64_t row, const QueryRows& queries) {
    // Both ends of what a query sees never decrease.
    const KeyRange first = mask.keys(queries.positions(queries.begin)),
                   last = mask.keys(queries.positions(queries.end - 1));
    const std::int64_t begin = mask.block_row_starts[row], end = mask.block_row_starts[row + 1];
    if (begin == end) return {begin, end, begin, end};
    // Mostly all blocks lie on one side, which needs no search.
    const std::int64_t first_column = mask.block_columns[begin], last_column = mask.block_columns[end - 1];
    const auto at = [&](std::int64_t column) {
      return column <= first_column ? begin : column > last_column ? end : mask.first_block(row, column);
    };
    ListedBlocks of{at(first.begin / mask.block_size), at(ceil_divide(last.end, mask.block_size)),
                    at(ceil_divide(last.begin, mask.block_size)),
                    at(first.end == mask.tokens ? mask.block_rows() : first.end / mask.block_size)};
    if (of.whole_end < of.whole_begin) of.whole_end = of.whole_begin;
    return of;
  }
};

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

/// Pairs of `queries`, which lie in one block row where there is a block list; by the whole team, in one sum.
template <class Member>
KOKKOS_FUNCTION std::int64_t pairs_of(const Member& team, const MaskRule& mask, const QueryRows& queries,
                                      const KeysOfColumns& keys) {
  const bool lists = mask.block_row_starts != nullptr, all = !lists || mask.blocks_excluded;
  const ListedBlocks blocks =
      lists ? ListedBlocks::of(mask, queries.positions(queries.begin) / mask.block_size, queries)
            : ListedBlocks{};
  // Places 0 … queries − 1 are queries, those behind them blocks that all queries see whole.
  const std::int64_t places = queries.count() + blocks.whole_end - blocks.whole_begin;
  const bool of_queries = mask.query_blocks != nullptr;
  const std::int64_t sign_of_listed = mask.blocks_excluded ? -1 : 1;
  std::int64_t total = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, places),
      [&](const std::int64_t i, std::int64_t& sum) {
        const std::int64_t whole = blocks.whole_begin + i - queries.count();
        if (i >= queries.count()) {
          sum += sign_of_listed * queries.count() * keys.counts[mask.block_columns[whole]];
          return;
        }
        if (of_queries) {
          sum += pairs_of_query(mask, queries.positions(queries.begin + i), keys);
          return;
        }
        const KeyRange seen = mask.keys(queries.positions(queries.begin + i));
        if (all) sum += keys_in(keys.keys, seen);
        const auto add = [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t place = begin; place < end; ++place)
            sum += sign_of_listed * keys.in(mask.block_columns[place], seen);
        };
        add(blocks.begin, blocks.whole_begin);
        add(blocks.whole_end, blocks.end);
      },
      total);
  return total;
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
  // A team has the queries of a block row, or some, where there are no blocks.
  const bool lists = what.mask.block_row_starts != nullptr;
  const std::int64_t rows_of_team = 128, size = what.mask.block_size;
  const std::int64_t first_block = lists ? positions.front() / size : 0;
  const std::int64_t teams =
      lists ? positions.back() / size - first_block + 1 : ceil_divide(rows, rows_of_team);
  // Heads that have a block list and a list of keys in common have the same pairs.
  const std::int64_t group = what.key_heads > 0 ? what.heads / what.key_heads : what.heads;
  const std::int64_t of_list = what.mask.lists_of_heads() ? what.mask.heads_of_list : what.heads;
  const std::int64_t alike = what.keys.listed != nullptr ? std::gcd(of_list, group) : of_list;
  const auto keys_of_columns = pairs_detail::count_keys_of_columns(exec, what);
  const pairs_detail::KeysOfColumns all_keys{what.keys, size, what.mask.tokens,
                                             what.mask.has_blocks() ? (*keys_of_columns).data() : nullptr};
  using Policy = Kokkos::TeamPolicy<Exec>;
  Kokkos::parallel_for(
      "annulus::attention::count_pairs",
      Policy(exec, static_cast<int>(what.heads / alike * teams), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t head = team.league_rank() / teams * alike, part = team.league_rank() % teams;
        pairs_detail::QueryRows queries{what.q_positions, part * rows_of_team, (part + 1) * rows_of_team};
        if (lists) {
          queries.begin = what.q_positions.rows_below((first_block + part) * size);
          queries.end = what.q_positions.rows_below((first_block + part + 1) * size);
        }
        if (queries.end > rows) queries.end = rows;
        if (queries.count() <= 0) return;
        pairs_detail::KeysOfColumns keys = all_keys;
        if (keys.keys.listed != nullptr) {
          keys.keys.listed += head / group * keys.keys.count();
          if (keys.counts != nullptr) keys.counts += head / group * what.mask.block_rows();
        }
        const std::int64_t pairs = pairs_detail::pairs_of(team, what.mask.of_head(head), queries, keys);
        Kokkos::single(Kokkos::PerTeam(team), [&] { Kokkos::atomic_add(count, alike * pairs); });
      });
}

#define ANNULUS_INSTANTIATE(Exec) template void count_pairs(const Exec&, const PairsOf&, std::int64_t*);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::attention
