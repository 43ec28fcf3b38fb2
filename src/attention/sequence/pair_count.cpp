#include "pair_count.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <annulus/base/division.hpp>

// A band with dilation depends on k − q alone. Between two arithmetic progressions of equal step, the
// difference first_k − first_q + step·u occurs once for each pair (i, j) of indices with j − i = u, and the
// number of such pairs is piecewise linear in u. A count is then an arithmetic series: nothing loops over
// rows. The same holds one level up, for the blocks of a position map.

namespace annulus::detail {

namespace {

/// As in MaskRule, a pair counts when −left ≤ k − q ≤ right and `dilation` divides q − k.
struct Band {
  std::int64_t left, right, dilation;
};

/// Numbers begin ≤ u ≤ end with u ≡ residue (mod period); empty when end < begin.
struct Indices {
  std::int64_t begin, end, residue, period;
};

/// `blocks` blocks, `hi` apart, of `rows` rows, `lo` apart: a position map without ragged ends.
struct PositionGrid {
  std::int64_t first, hi, blocks, lo, rows;
};

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  return a - floor_divide(a, b) * b;
}

/// x with a·x ≡ 1 (mod m), for coprime a and m.
std::int64_t inverse_modulo(std::int64_t a, std::int64_t m) {
  std::int64_t x = 0, next_x = 1, rest = m, next_rest = modulo(a, m);
  while (next_rest != 0) {  // extended Euclid: a·x ≡ rest (mod m) throughout
    const std::int64_t quotient = rest / next_rest;
    x = std::exchange(next_x, x - quotient * next_x);
    rest = std::exchange(next_rest, rest - quotient * next_rest);
  }
  return modulo(x, m);
}

/// Σ (constant + slope·u) over those of `indices` with begin ≤ u ≤ end.
std::int64_t linear_sum(const Indices& indices, std::int64_t begin, std::int64_t end, std::int64_t constant,
                        std::int64_t slope) {
  begin = std::max(begin, indices.begin);
  end = std::min(end, indices.end);
  begin += modulo(indices.residue - begin, indices.period);
  if (end < begin) return 0;
  const std::int64_t terms = (end - begin) / indices.period + 1;
  const std::int64_t last = begin + (terms - 1) * indices.period;
  const std::int64_t ends = 2 * constant + slope * (begin + last);  // first and last term of the series
  return terms % 2 == 0 ? terms / 2 * ends : terms * (ends / 2);
}

/// Number of (i, j), 0 ≤ i < n, 0 ≤ j < m, with j − i among `indices`.
std::int64_t index_pairs(std::int64_t n, std::int64_t m, const Indices& indices) {
  const std::int64_t plateau = std::min(n, m);
  return linear_sum(indices, 1 - n, plateau - n - 1, n, 1) +
         linear_sum(indices, plateau - n, m - plateau, plateau, 0) +
         linear_sum(indices, m - plateau + 1, m - 1, m, -1);
}

/// The u for which the difference `offset` + step·u lies in the band; nothing when none does.
std::optional<Indices> indices_in_band(const Band& band, std::int64_t offset, std::int64_t step) {
  const std::int64_t common = std::gcd(step, band.dilation);
  if (offset % common != 0) return std::nullopt;
  const std::int64_t period = band.dilation / common;
  const std::int64_t residue =
      period == 1 ? 0 : modulo(-(offset / common) % period * inverse_modulo(step / common, period), period);
  return Indices{ceil_divide(-band.left - offset, step), floor_divide(band.right - offset, step), residue,
                 period};
}

/// Pairs of two blocks, `offset` = first key − first query apart, that have equal steps (or a single row).
std::int64_t pairs_of_blocks(const Band& band, std::int64_t offset, const PositionGrid& q,
                             const PositionGrid& k) {
  const auto indices = indices_in_band(band, offset, q.rows > 1 ? q.lo : k.lo);
  return indices ? index_pairs(q.rows, k.rows, *indices) : 0;
}

std::int64_t pairs_of_grids(const Band& band, const PositionGrid& q, const PositionGrid& k,
                            std::int64_t enough) {
  // Shards of one layout agree in hi and lo. Others are taken apart until they do: a single block or row has
  // no step. The rows of a single block can pass as blocks of one row, as those of a striped shard do beside
  // the shards of several ranks together.
  if (q.rows > 1 && k.rows > 1 && q.lo != k.lo) {
    const auto pass_as_blocks = [](const PositionGrid& grid, const PositionGrid& other) {
      return grid.blocks == 1 && (other.blocks == 1 ? other.lo < grid.lo : other.hi == grid.lo);
    };
    if (pass_as_blocks(q, k)) return pairs_of_grids(band, {q.first, q.lo, q.rows, 1, 1}, k, enough);
    if (pass_as_blocks(k, q)) return pairs_of_grids(band, q, {k.first, k.lo, k.rows, 1, 1}, enough);
  }
  std::int64_t sum = 0;
  if (q.blocks > 1 && k.blocks > 1 && q.hi != k.hi) {
    for (std::int64_t a = 0; a < q.blocks && sum < enough; ++a)
      sum += pairs_of_grids(band, {q.first + a * q.hi, 1, 1, q.lo, q.rows}, k, enough - sum);
    return sum;
  }
  if (q.rows > 1 && k.rows > 1 && q.lo != k.lo) {
    for (std::int64_t i = 0; i < q.rows && sum < enough; ++i)
      sum += pairs_of_grids(band, {q.first + i * q.lo, q.hi, q.blocks, 1, 1}, k, enough - sum);
    return sum;
  }
  // Block distances u = column − row whose blocks come close enough for some pair to lie in the band.
  const std::int64_t offset = k.first - q.first, hi = q.blocks > 1 ? q.hi : k.hi;
  const std::int64_t q_span = (q.rows - 1) * q.lo, k_span = (k.rows - 1) * k.lo;
  const std::int64_t begin = std::max(1 - q.blocks, ceil_divide(-band.left - k_span - offset, hi));
  const std::int64_t end = std::min(k.blocks - 1, floor_divide(band.right + q_span - offset, hi));
  for (std::int64_t u = begin; u <= end && sum < enough; ++u)
    sum += index_pairs(q.blocks, k.blocks, {u, u, 0, 1}) * pairs_of_blocks(band, offset + u * hi, q, k);
  return sum;
}

/// Shows `visit` a position map as grids, until it returns false: each of its runs, or the rest of its first
/// block, whole blocks, and the start of its last block.
template <class Visit>
void visit_grids(const PositionMap& map, const Visit& visit) {
  const auto show = [&](PositionGrid grid) {
    // Without a second block or row any step will do, but none is 0.
    grid.hi = std::max<std::int64_t>(grid.hi, 1);
    grid.lo = std::max<std::int64_t>(grid.lo, 1);
    return visit(grid);
  };
  if (map.runs != nullptr) {
    for (std::int64_t i = 0, end = 0; i < map.count; i = end) {
      end = map.end_of_run(i);
      if (!show({map(i), 1, 1, 1, end - i})) return;
    }
  } else if (map.block == 1) {  // blocks of one row are the rows of one block
    show({map.front(), 1, 1, map.hi, map.count});
  } else {
    const std::int64_t head = std::min(map.count, modulo(-map.first, map.block));
    const std::int64_t blocks = (map.count - head) / map.block, tail = (map.count - head) % map.block;
    if (head > 0 && !show({map.front(), 1, 1, map.lo, head})) return;
    if (blocks > 0 && !show({map(head), map.hi, blocks, map.lo, map.block})) return;
    if (tail > 0) show({map(map.count - tail), 1, 1, map.lo, tail});
  }
}

std::int64_t pairs_in_band(const Band& band, const PositionMap& q, const PositionMap& k,
                           std::int64_t enough) {
  if (q.empty() || k.empty()) return 0;
  if (q.back() - k.front() < -band.right || q.front() - k.back() > band.left) return 0;
  std::int64_t sum = 0;
  visit_grids(q, [&](const PositionGrid& queries) {
    visit_grids(k, [&](const PositionGrid& keys) {
      sum += pairs_of_grids(band, queries, keys, enough - sum);
      return sum < enough;
    });
    return sum < enough;
  });
  return sum;
}

/// The rows of `map` at positions [begin, end).
PositionMap rows_between(const PositionMap& map, std::int64_t begin, std::int64_t end) {
  return map.slice({map.rows_below(begin), map.rows_below(end)});
}

std::int64_t pairs_in_documents(const MaskRule& rule, const PositionMap& q, const PositionMap& k,
                                std::int64_t enough) {
  const Band band{rule.left, rule.right, rule.dilation};
  if (rule.document_starts == nullptr) return pairs_in_band(band, q, k, enough);
  if (pairs_in_band(band, q, k, 1) == 0) return 0;  // too far apart for any document
  std::int64_t sum = 0;
  // From document to document, leaping over those in which one of the sides has no row.
  for (std::int64_t i = 0; i < q.count && sum < enough;) {
    const std::int64_t j = k.rows_below(rule.document_starts[rule.document(q(i))]);
    if (j == k.count) break;
    const std::int64_t document = rule.document(std::max(q(i), k(j)));
    const std::int64_t begin = rule.document_starts[document], end = rule.document_starts[document + 1];
    sum += pairs_in_band(band, rows_between(q, begin, end), rows_between(k, begin, end), enough - sum);
    i = q.rows_below(end);
  }
  return sum;
}

std::int64_t pairs_in_blocks(const MaskRule& rule, const PositionMap& q, const PositionMap& k,
                             std::int64_t enough) {
  const std::int64_t size = rule.block_size, last_column = k.back() / size;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < q.count && sum < enough;) {
    const std::int64_t row = q(i) / size, next = q.rows_below((row + 1) * size);
    const PositionMap queries = q.slice({i, next});
    const std::int64_t listed = rule.first_block(row, last_column + 1);
    for (std::int64_t at = rule.first_block(row, k.front() / size); at < listed && sum < enough;) {
      const std::int64_t begin = rule.block_columns[at];
      std::int64_t end = begin;  // neighbouring blocks count as one
      for (; at < listed && rule.block_columns[at] == end; ++at) ++end;
      sum += pairs_in_documents(rule, queries, rows_between(k, begin * size, end * size), enough - sum);
    }
    i = next;
  }
  return sum;
}

}  // namespace

std::int64_t count_pairs(const MaskRule& rule, const PositionMap& q, const PositionMap& k,
                         std::int64_t enough) {
  if (q.empty() || k.empty()) return 0;
  if (rule.block_row_starts != nullptr) return pairs_in_blocks(rule, q, k, enough);
  return pairs_in_documents(rule, q, k, enough);
}

}  // namespace annulus::detail
