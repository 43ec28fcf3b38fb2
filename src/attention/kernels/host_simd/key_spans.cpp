#include "attention/kernels/host_simd/key_spans.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "attention/kernels/host_simd/tuning.hpp"

namespace annulus::attention::host_simd {
namespace {

constexpr float masked = -std::numeric_limits<float>::infinity();

void fill(float* scores, std::ptrdiff_t stride, std::int64_t begin, std::int64_t end) {
  for (std::int64_t j = begin; j < end; ++j) scores[j * stride] = masked;
}

/// Which keys of a tile the block list allows a block row of queries: one search for each block of keys, and
/// none for the next query of the same block row.
class AllowedKeys {
 public:
  static constexpr std::int64_t most = std::max(forward_kv_rows, backward_panels(16) * panel);

  AllowedKeys(const MaskRule& mask, const KeyPositions& keys) : mask_(mask), keys_(keys) {}

  void look_up(std::int64_t query) {
    if (query / mask_.block_size == row_) return;
    row_ = query / mask_.block_size;
    std::int64_t block = -1;
    bool allowed = false;
    for (std::int64_t j = 0; j < keys_.count(); ++j) {
      const std::int64_t key = keys_(j);
      if (key / mask_.block_size != block) {
        block = key / mask_.block_size;
        allowed = mask_.block_allows(query, key);
      }
      allowed_[static_cast<std::size_t>(j)] = allowed;
    }
  }
  bool operator[](std::int64_t j) const { return allowed_[static_cast<std::size_t>(j)]; }

 private:
  const MaskRule& mask_;
  KeyPositions keys_;
  std::int64_t row_ = -1;
  std::array<bool, most> allowed_;
};

/// Masks the keys of a tile block by block: a query has a block or not.
template <class Seen, class RowOf>
void mask_query_blocks(const RowMask& mask, const QueryRows& queries, const KeyPositions& keys,
                       std::ptrdiff_t key_stride, const Seen& seen, const RowOf& row_of) {
  for (std::int64_t first = 0, end; first < keys.count(); first = end) {
    const std::int64_t column = keys(first) / mask.rule.block_size;
    end = keys.rows_below((column + 1) * mask.rule.block_size);
    for (int i = 0; i < queries.count; ++i) {
      if (mask.rule.query_has_block(mask.q_positions(queries(i)), column)) continue;
      const RowRange inside = seen(i);
      fill(row_of(i), key_stride, std::max(first, inside.begin), std::min(end, inside.end));
    }
  }
}

}  // namespace

PooledScratch<KeySpan> key_spans(const HostExec& exec, const PositionMap& queries, const KeyPositions& keys,
                                 const MaskRule& mask) {
  PooledScratch<KeySpan> scratch(static_cast<std::size_t>(queries.count));
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

void mask_tile(const RowMask& mask, const QueryRows& queries, RowRange keys, const ScoreTile& tile) {
  const KeyPositions tile_keys = mask.keys.slice(keys);
  const auto row_of = [&](int i) { return tile.scores + i * tile.query_stride; };
  const auto seen = [&](int i) {
    const KeySpan& span = mask.spans[queries(i)];
    const std::int64_t begin = std::clamp<std::int64_t>(span.begin - keys.begin, 0, keys.size());
    return RowRange{begin, std::clamp<std::int64_t>(span.end - keys.begin, begin, keys.size())};
  };
  for (int i = 0; i < queries.count; ++i) {
    float* const scores = row_of(i);
    const RowRange inside = seen(i);
    fill(scores, tile.key_stride, 0, inside.begin);
    fill(scores, tile.key_stride, inside.end, keys.size());
    for (std::int64_t j = inside.begin; mask.rule.dilation > 1 && j < inside.end; ++j) {
      if ((mask.q_positions(queries(i)) - tile_keys(j)) % mask.rule.dilation != 0)
        scores[j * tile.key_stride] = masked;
    }
  }
  if (mask.rule.query_blocks != nullptr)
    return mask_query_blocks(mask, queries, tile_keys, tile.key_stride, seen, row_of);
  if (mask.rule.block_row_starts == nullptr) return;
  for (std::int64_t first = 0; first < keys.size(); first += AllowedKeys::most) {
    const std::int64_t end = std::min(first + AllowedKeys::most, keys.size());
    AllowedKeys allowed(mask.rule, tile_keys.slice({first, end}));
    for (int i = 0; i < queries.count; ++i) {
      allowed.look_up(mask.q_positions(queries(i)));
      float* const scores = row_of(i);
      const RowRange inside = seen(i);
      for (std::int64_t j = std::max(first, inside.begin); j < std::min(end, inside.end); ++j) {
        if (!allowed[j - first]) scores[j * tile.key_stride] = masked;
      }
    }
  }
}

}  // namespace annulus::attention::host_simd
