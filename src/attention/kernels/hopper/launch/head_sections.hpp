#pragma once

#include <algorithm>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/schedule/block_bits.hpp"

/// Launches with fewer heads, where the tables of all heads' block lists together would be large.
namespace annulus::attention::hopper {

/// How many block lists a launch may have, so that its tables stay below some gigabytes: runs and coverage of
/// all pairs of tiles, and bits.
inline std::int64_t lists_at_once(const MaskRule& mask, const PositionMap& queries, const PositionMap& keys,
                                  bool keys_listed) {
  // Pairs of rows: 1.1 GB of runs and coverage, and 2.3 GB in tiles of 64 × 64.
  constexpr std::int64_t most_pairs = std::int64_t{1} << 39;
  // 1 GB, and what fills up the last tile of 524,288 rows of 524,288 queries with blocks of their own.
  constexpr std::int64_t most_words = (std::int64_t{1} << 28) + (std::int64_t{1} << 20);
  if (!mask.has_blocks() || queries.empty() || keys.empty()) return mask.block_lists;
  const auto of_pass = [&](const BitsSize& bits) {
    return std::min(most_pairs / queries.count / keys.count, most_words / bits.rows / bits.words_of_row);
  };
  return std::min(of_pass(BitsSize::of(mask, true, queries, false, keys, keys_listed, keys.count + 128)),
                  of_pass(BitsSize::of(mask, false, keys, keys_listed, queries, false, queries.count + 128)));
}

/// Some kv heads of a sequence with all query heads that read them, or some query heads of one kv head, or
/// all heads of all sequences.
struct HeadSection {
  int batch = 0, first_kv_head = 0;
  int sequences = 1, kv_heads = 1;
  int first_head = 0, heads = 1;  ///< of those that read a kv head

  /// (batch, kv heads, …) from this section on.
  template <class E>
  gpu::Rows<E> of_kv_heads(const gpu::Rows<E>& rows) const {
    return {rows.at(batch, first_kv_head, 0), rows.batch_stride, rows.head_stride, rows.row_stride};
  }
  /// (batch, heads, …) from this section on; `group`: heads that read a kv head.
  template <class E>
  gpu::Rows<E> of_heads(const gpu::Rows<E>& rows, int group) const {
    return {rows.at(batch, first_kv_head * group + first_head, 0), rows.batch_stride, rows.head_stride,
            rows.row_stride};
  }
  template <class T>
  gpu::Input<T> of(gpu::Input<T> in) const {
    const int group = in.heads / in.kv_heads;
    const std::int64_t kv_before = std::int64_t{batch} * in.kv_heads + first_kv_head;
    in.q = of_heads(in.q, group);
    in.k = of_kv_heads(in.k);
    in.v = of_kv_heads(in.v);
    if (in.mask.lists_of_heads()) {
      const std::int64_t heads_of_list = in.mask.heads_of_list;
      in.mask = in.mask.from_list((kv_before * group + first_head) / heads_of_list);
      in.mask.block_lists = std::int64_t{sequences} * kv_heads * heads / heads_of_list;
    }
    if (in.kv_listed != nullptr) in.kv_listed += kv_before * in.kv_positions.count;
    in.batch = sequences;
    in.heads = kv_heads * heads;
    in.kv_heads = kv_heads;
    return in;
  }
};

/// The first section of for_each_section, which no other one is larger than.
template <class T>
HeadSection largest_section(const gpu::Input<T>& in) {
  const int group = in.heads / in.kv_heads;
  const std::int64_t all_heads = std::int64_t{in.batch} * in.heads;
  const std::int64_t heads =
      in.mask.lists_of_heads()
          ? lists_at_once(in.mask, in.q_positions, in.kv_positions, in.kv_listed != nullptr) *
                in.mask.heads_of_list
          : all_heads;
  if (heads >= all_heads) return {.sequences = in.batch, .kv_heads = in.kv_heads, .heads = group};
  if (heads < group) return {.heads = static_cast<int>(heads)};
  return {.kv_heads = static_cast<int>(std::min<std::int64_t>(heads / group, in.kv_heads)), .heads = group};
}

/// Calls run(section) until all heads have had their turn. Sections of one kv head follow one another, from
/// its first query head on.
template <class T, class Run>
void for_each_section(const gpu::Input<T>& in, const Run& run) {
  const HeadSection largest = largest_section(in);
  const int group = in.heads / in.kv_heads;
  for (int batch = 0; batch < in.batch; batch += largest.sequences) {
    for (int kv_head = 0; kv_head < in.kv_heads; kv_head += largest.kv_heads) {
      for (int head = 0; head < group; head += largest.heads)
        run(HeadSection{batch, kv_head, largest.sequences, std::min(largest.kv_heads, in.kv_heads - kv_head),
                        head, std::min(largest.heads, group - head)});
    }
  }
}

}  // namespace annulus::attention::hopper
