#pragma once

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/host_simd/scratch.hpp"

/// What the mask allows, in terms of rows instead of positions.
namespace annulus::attention::host_simd {

/// Key rows [begin, end) that a query row can see as far as band and documents go. Dilation and blocks
/// only take more away. Both ends never decrease from one query row to the next.
struct KeySpan {
  std::int64_t begin, end;
};
using KeySpans = Array1<KeySpan, HostExec>;

/// The spans of all query rows: one look-up for all heads and tiles.
PooledScratch<KeySpan> key_spans(const HostExec& exec, const PositionMap& queries, const KeyPositions& keys,
                                 const MaskRule& mask);

/// Rows of queries, increasing: side by side, or listed.
struct QueryRows {
  std::int64_t first = 0;
  int count = 0;
  const std::int32_t* listed = nullptr;

  static QueryRows of(RowRange rows) { return {rows.begin, static_cast<int>(rows.size())}; }
  std::int64_t operator()(int i) const { return listed == nullptr ? first + i : std::int64_t{listed[i]}; }
  QueryRows slice(int begin, int end) const {
    return {first + begin, end - begin, listed == nullptr ? nullptr : listed + begin};
  }
};

/// A tile of scores: `queries` × `keys` are the rows that it covers, score (i, j) stands at
/// scores[i · query_stride + j · key_stride].
struct ScoreTile {
  float* scores;
  std::ptrdiff_t query_stride, key_stride;
};

/// A mask in terms of the rows of a block of queries and keys.
struct RowMask {
  const MaskRule& rule;
  const PositionMap& q_positions;
  KeyPositions keys;
  const KeySpan* spans;  ///< of all query rows
};

/// Sets the scores of a tile that the mask does not allow to −∞.
void mask_tile(const RowMask& mask, const QueryRows& queries, RowRange keys, const ScoreTile& tile);

}  // namespace annulus::attention::host_simd
