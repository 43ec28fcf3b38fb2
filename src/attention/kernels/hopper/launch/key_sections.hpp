#pragma once

#include <algorithm>

#include "attention/kernels/gpu/problem.hpp"

/// Launches of the forward pass with some of the keys, where K and V of a head are more than the L2 cache
/// holds.
namespace annulus::attention::hopper {

/// How many keys a launch of the forward pass may have. Blocks begin a launch together. Over a long loop they
/// drift apart, until each of them reads K and V from memory. The number depends on the shape alone: bits
/// depend on it.
template <class T>
std::int64_t keys_at_once(const gpu::Input<T>& in) {
  constexpr std::int64_t bytes = std::int64_t{32} << 20, rows_of_tile = 128;
  const std::int64_t keys = bytes / static_cast<std::int64_t>(sizeof(T)) / (in.head_dim + in.v_head_dim) /
                            rows_of_tile * rows_of_tile;
  const std::int64_t all = in.kv_positions.count, seen = std::min(in.mask.left + in.mask.right, all);
  const bool has_long_loops = !in.mask.has_blocks() && in.mask.dilation <= 1 && in.kv_listed == nullptr &&
                              in.mask.document_starts == nullptr && seen > 2 * keys;
  return has_long_loops ? keys : all;
}

/// Calls run(problem with some of the keys, whether out and lse hold nothing yet) until all keys, at most
/// `keys` at once, have had their turn. Each call leaves the running result to the next, the last one
/// finishes it. The mask has neither blocks nor dilation where there are more than `keys`.
template <class T, class Run>
void for_each_key_section(const gpu::ForwardProblem<T>& problem, bool fresh, std::int64_t keys,
                          const Run& run) {
  const gpu::Input<T>& in = problem.in;
  const std::int64_t all = in.kv_positions.count;
  for (std::int64_t begin = 0; begin < all; begin += keys) {
    const RowRange rows{begin, std::min(begin + keys, all)};
    const bool is_first = begin == 0, is_last = rows.end == all;
    gpu::ForwardProblem<T> part = problem;
    part.in.k.data += rows.begin * in.k.row_stride;
    part.in.v.data += rows.begin * in.v.row_stride;
    part.in.kv_positions = in.kv_positions.slice(rows);
    if (!is_last) {
      part.finished = {};
      part.sinks = nullptr;
      if (!is_first || !fresh) {
        // Queries in front see none of these keys. Tiles of all sizes begin where they would with all rows.
        constexpr std::int64_t rows_of_tiles = 768;
        const std::int64_t first = in.q_positions.rows_below(part.in.kv_positions.front() - in.mask.right) /
                                   rows_of_tiles * rows_of_tiles;
        if (first == in.q_positions.count) continue;
        part.in.q.data += first * in.q.row_stride;
        part.out.data += first * problem.out.row_stride;
        part.lse.data += first * problem.lse.row_stride;
        part.in.q_positions = in.q_positions.slice({first, in.q_positions.count});
      }
    }
    run(part, fresh && is_first);
  }
}

}  // namespace annulus::attention::hopper
