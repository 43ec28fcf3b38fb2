#include "attention/host_simd/key_spans.hpp"

#include <algorithm>
#include <limits>

namespace annulus::attention::host_simd {
namespace {

constexpr float masked = -std::numeric_limits<float>::infinity();

void fill(float* scores, std::ptrdiff_t stride, std::int64_t begin, std::int64_t end) {
  for (std::int64_t j = begin; j < end; ++j) scores[j * stride] = masked;
}

// The keys `seen` of one query, given relative to the tile, against dilation and block list.
void mask_inside(const MaskRule& mask, std::int64_t query, const PositionMap& keys, RowRange seen,
                 float* scores, std::ptrdiff_t stride) {
  std::int64_t block = -1;
  bool in_list = true;
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    const std::int64_t key = keys(j);
    if (mask.block_row_starts != nullptr &&
        key / mask.block_size != block) {  // one search for each block of the row
      block = key / mask.block_size;
      in_list = mask.block_allows(query, key);
    }
    if (!in_list || (query - key) % mask.dilation != 0) scores[j * stride] = masked;
  }
}

}  // namespace

Scratch<KeySpan> key_spans(const HostExec& exec, const PositionMap& queries, const PositionMap& keys,
                           const MaskRule& mask) {
  Scratch<KeySpan> scratch(static_cast<std::size_t>(queries.count));
  MaskRule band = mask;
  band.dilation = 1;
  const KeySpans spans = scratch.view();
  Kokkos::parallel_for("annulus::attention::key_spans", Kokkos::RangePolicy<HostExec>(exec, 0, queries.count),
                       [=](std::int64_t row) {
                         const KeyRange range = band.keys(queries(row));
                         const std::int64_t begin = keys.rows_below(range.begin);
                         spans(row) = {begin, std::max(begin, keys.rows_below(range.end))};
                       });
  return scratch;
}

void mask_tile(const RowMask& mask, RowRange queries, RowRange keys, const ScoreTile& tile) {
  const bool holes = mask.rule.dilation > 1 || mask.rule.block_row_starts != nullptr;
  const PositionMap tile_keys = mask.kv_positions.slice(keys);
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    float* scores = tile.scores + (i - queries.begin) * tile.query_stride;
    const std::int64_t begin = std::clamp<std::int64_t>(mask.spans[i].begin - keys.begin, 0, keys.size());
    const std::int64_t end = std::clamp<std::int64_t>(mask.spans[i].end - keys.begin, begin, keys.size());
    fill(scores, tile.key_stride, 0, begin);
    fill(scores, tile.key_stride, end, keys.size());
    if (holes) mask_inside(mask.rule, mask.q_positions(i), tile_keys, {begin, end}, scores, tile.key_stride);
  }
}

}  // namespace annulus::attention::host_simd
