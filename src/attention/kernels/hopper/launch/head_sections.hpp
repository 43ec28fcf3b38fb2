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
  constexpr std::int64_t most_words = std::int64_t{1} << 28;  // 1 GB
  if (!mask.has_blocks() || queries.empty() || keys.empty()) return mask.block_lists;
  const auto of_pass = [&](const BitsSize& bits) {
    return std::min(most_pairs / queries.count / keys.count, most_words / bits.rows / bits.words_of_row);
  };
  return std::min(of_pass(BitsSize::of(mask, true, queries, false, keys, keys_listed, keys.count + 128)),
                  of_pass(BitsSize::of(mask, false, keys, keys_listed, queries, false, queries.count + 128)));
}

/// Some kv heads of a sequence with all query heads that read them, or all heads of all sequences.
struct HeadSection {
  int batch = 0, first_kv_head = 0;
  int sequences = 1, kv_heads = 1;

  /// (batch, heads, …) from this section on; `group`: heads for each kv head.
  template <class E>
  gpu::Rows<E> of(const gpu::Rows<E>& rows, int group) const {
    return {rows.at(batch, first_kv_head * group, 0), rows.batch_stride, rows.head_stride, rows.row_stride};
  }
  template <class T>
  gpu::Input<T> of(gpu::Input<T> in) const {
    const int group = in.heads / in.kv_heads;
    const std::int64_t kv_before = std::int64_t{batch} * in.kv_heads + first_kv_head;
    in.q = of(in.q, group);
    in.k = of(in.k, 1);
    in.v = of(in.v, 1);
    if (in.mask.lists_of_heads()) {
      const std::int64_t lists_of_kv_head = group / in.mask.heads_of_list;
      in.mask = in.mask.from_list(kv_before * lists_of_kv_head);
      in.mask.block_lists = std::int64_t{sequences} * kv_heads * lists_of_kv_head;
    }
    if (in.kv_listed != nullptr) in.kv_listed += kv_before * in.kv_positions.count;
    in.batch = sequences;
    in.heads = kv_heads * group;
    in.kv_heads = kv_heads;
    return in;
  }
};

/// The first section of for_each_section, which no other one is larger than.
template <class T>
HeadSection largest_section(const gpu::Input<T>& in) {
  const std::int64_t group = in.heads / in.kv_heads;
  const std::int64_t kv_heads =
      in.mask.lists_of_heads()
          ? lists_at_once(in.mask, in.q_positions, in.kv_positions, in.kv_listed != nullptr) *
                in.mask.heads_of_list / group
          : std::int64_t{in.batch} * in.kv_heads;
  if (kv_heads >= std::int64_t{in.batch} * in.kv_heads) return {0, 0, in.batch, in.kv_heads};
  return {0, 0, 1, static_cast<int>(std::min<std::int64_t>(kv_heads, in.kv_heads))};
}

/// Calls run(section) until all heads have had their turn.
template <class T, class Run>
void for_each_section(const gpu::Input<T>& in, const Run& run) {
  const HeadSection largest = largest_section(in);
  for (int batch = 0; batch < in.batch; batch += largest.sequences) {
    for (int first = 0; first < in.kv_heads; first += largest.kv_heads)
      run(HeadSection{batch, first, largest.sequences, std::min(largest.kv_heads, in.kv_heads - first)});
  }
}

}  // namespace annulus::attention::hopper
