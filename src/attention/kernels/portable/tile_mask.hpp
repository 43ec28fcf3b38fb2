#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/attention/sequence/mask.hpp>

#include "attention/kernels/portable/scratch.hpp"

namespace annulus::attention::portable {

/// Rows of `kv` outside which no row of `q` has a key; the intervals of keys move forward with the query. `q`
/// is not empty.
KOKKOS_INLINE_FUNCTION RowRange key_rows(const MaskRule& rule, const PositionMap& q, const KeyPositions& kv) {
  return {kv.rows_below(rule.key_range(q.front(), rule.left, rule.right).begin),
          kv.rows_below(rule.key_range(q.back(), rule.left, rule.right).end)};
}

/// Rows of `q` outside which no row attends to a row of `kv`. `kv` is not empty.
KOKKOS_INLINE_FUNCTION RowRange query_rows(const MaskRule& rule, const PositionMap& q,
                                           const KeyPositions& kv) {
  return {q.rows_below(rule.key_range(kv.front(), rule.right, rule.left).begin),
          q.rows_below(rule.key_range(kv.back(), rule.right, rule.left).end)};
}

/// Rows [first, first + rows) of `positions`, as far as they are below `end`.
template <class Positions>
KOKKOS_INLINE_FUNCTION Positions tile_of(const Positions& positions, std::int64_t first, std::int64_t end) {
  return positions.slice({first, Kokkos::min<std::int64_t>(first + rows, end)});
}

/// A thread's part of writing what the rows of `q` may attend to.
template <int threads>
KOKKOS_INLINE_FUNCTION void load_queries(int thread, const MaskRule& rule, const PositionMap& q,
                                         RowKeys* queries) {
  for (int i = thread; i < static_cast<int>(q.count); i += threads) {
    const std::int64_t position = q(i);
    const KeyRange keys = rule.keys(position);
    queries[i] = {position, keys.begin, keys.end};
  }
}

/// A thread's part of writing the positions of the rows of `kv`.
template <int threads>
KOKKOS_INLINE_FUNCTION void load_keys(int thread, const KeyPositions& kv, std::int64_t* keys) {
  for (int j = thread; j < static_cast<int>(kv.count()); j += threads) keys[j] = kv(j);
}

/// The mask inside a tile, from what load_queries and load_keys wrote.
KOKKOS_INLINE_FUNCTION bool allows(const MaskRule& rule, const RowKeys& query, std::int64_t key) {
  return KeyRange{query.begin, query.end, rule.dilation}.contains(key) &&
         rule.block_allows(query.position, key);
}

}  // namespace annulus::attention::portable
