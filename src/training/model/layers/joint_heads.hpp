#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <numeric>

#include "base/kokkos/pack.hpp"
#include "training/model/ops.hpp"

/// How kernels walk over the joint array of queries, keys and values, (batch·tokens, (heads +
/// 2·kv_heads)·head_dim), and turn pairs of elements by their positions.
namespace annulus::model {

/// A row of the arrays (batch·tokens, …): the tokens of one sequence after those of the other.
struct TokenRow {
  KOKKOS_FORCEINLINE_FUNCTION TokenRow(int row, int tokens)
      : sequence(row / tokens), token(row - sequence * tokens) {}
  std::int64_t sequence, token;
};

/// How the elements of a head form pairs. Pair i < turned is elements i and turned + i, which positions turn.
/// Where a part of the head is turned, the elements behind 2 · turned form pairs, too, which stay.
struct HeadPairs {
  int half;    // pairs of a head
  int turned;  // the first ones

  KOKKOS_FORCEINLINE_FUNCTION bool turns(int pair) const { return pair < turned; }
  KOKKOS_FORCEINLINE_FUNCTION int first(int pair) const { return turns(pair) ? pair : turned + pair; }
  KOKKOS_FORCEINLINE_FUNCTION int second(int pair) const { return (turns(pair) ? turned : half) + pair; }
  /// Pairs that a pack takes have to divide it.
  int step() const { return std::gcd(half, turned); }
};
/// The pairs of `joint` heads in rows of `width` elements.
template <class Exec>
HeadPairs head_pairs(int width, int joint, const RopeTable<Exec>& table) {
  return {.half = width / joint / 2, .turned = table.cosine.extent_int(1)};
}

/// What a pair of the joint array belongs to. The pairs of all heads are counted through.
class QkvColumn {
 public:
  /// `half`: pairs of a head. `row`: elements of a row of q, k and v, where zeros may stand behind the
  /// head's.
  KOKKOS_FORCEINLINE_FUNCTION QkvColumn(int pair, int half, int row, int heads, int kv_heads) : row_(row) {
    const int joint = pair / half;
    i = pair - joint * half;
    column = joint * 2 * half;
    which = joint < heads ? 0 : joint < heads + kv_heads ? 1 : 2;
    head = which == 0 ? joint : which == 1 ? joint - heads : joint - heads - kv_heads;
    heads_ = which == 0 ? heads : kv_heads;
  }

  /// The first element of its head's row in the array (batch, heads, tokens, padded_head_dim).
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T* in(T* q, T* k, T* v, const TokenRow& row, int tokens) const {
    const std::int64_t joint = row.sequence * heads_ + head;
    return (which == 0 ? q : which == 1 ? k : v) + (joint * tokens + row.token) * row_;
  }

  int which;   // 0: q, 1: k, 2: v
  int head;    // of q, k or v
  int i;       // the pair, of its head
  int column;  // of the joint array: the head's first element

 private:
  int row_;
  int heads_;  // of the array
};

/// Turns the first elements of pairs with the second ones. Products are joined to
/// sums here and not by the compiler, so that every kernel that turns gives the same bits.
template <int width>
KOKKOS_FORCEINLINE_FUNCTION void rotate(Pack<width>& first, Pack<width>& second, const Pack<width>& cosine,
                                        const Pack<width>& sine) {
  for (int j = 0; j < width; ++j) {
    const float a = first[j], b = second[j];
    first[j] = Kokkos::fma(a, cosine[j], -(b * sine[j]));
    second[j] = Kokkos::fma(b, cosine[j], a * sine[j]);
  }
}
/// The transpose.
template <int width>
KOKKOS_FORCEINLINE_FUNCTION void rotate_back(Pack<width>& first, Pack<width>& second,
                                             const Pack<width>& cosine, const Pack<width>& sine) {
  for (int j = 0; j < width; ++j) {
    const float a = first[j], b = second[j];
    first[j] = Kokkos::fma(a, cosine[j], b * sine[j]);
    second[j] = Kokkos::fma(b, cosine[j], -(a * sine[j]));
  }
}

}  // namespace annulus::model
