#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/macros.hpp>
#include <annulus/sequence/position_map.hpp>

namespace annulus {

/// Keys begin, begin + stride, … below end, in global positions.
struct KeyRange {
  std::int64_t begin = 0, end = 0, stride = 1;
  ANNULUS_FUNCTION constexpr bool empty() const { return end <= begin; }
  ANNULUS_FUNCTION constexpr bool contains(std::int64_t k) const {
    return k >= begin && k < end && (stride == 1 || (k - begin) % stride == 0);
  }
};

/// What a (query tile, key tile) pair holds of the mask.
enum class Coverage : std::uint8_t { empty, partial, full };

/// The mask in the form kernels read: numbers and borrowed arrays, no ownership. All masks are intersections of
/// a band q − left ≤ k ≤ q + right, a dilation (q − k divisible by `dilation`), documents (k in q's document)
/// and a block list. Positions are global, so neither layout nor number of ranks changes what is masked.
struct MaskRule {
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max() / 4;

  std::int64_t tokens = 0;         ///< length of the whole sequence
  std::int64_t left = unbounded;   ///< keys at most this far before the query
  std::int64_t right = unbounded;  ///< keys at most this far behind it (causal: 0)
  std::int64_t dilation = 1;       ///< distance of the keys of a row

  /// Start offsets of the documents, increasing from 0, closed by `tokens`; null without document mask.
  const std::int64_t* document_starts = nullptr;
  std::int64_t documents = 0;

  /// Block list (CSR): block row r holds the increasing block columns columns[row_starts[r] … row_starts[r+1]);
  /// null without block mask.
  std::int64_t block_size = 0;
  const std::int64_t* block_row_starts = nullptr;
  const std::int64_t* block_columns = nullptr;

  /// The keys of query `q` (a global position) before the block list is applied. Both ends do not decrease as q
  /// grows (`begin` up to its residue under dilation).
  ANNULUS_FUNCTION KeyRange keys(std::int64_t q) const;

  /// True when query `q` attends to key `k` (both global positions).
  ANNULUS_FUNCTION bool allows(std::int64_t q, std::int64_t k) const;

  /// True when the block list (if there is one) holds the block of (q, k).
  ANNULUS_FUNCTION bool block_allows(std::int64_t q, std::int64_t k) const;

  /// Classifies the tile of the rows of `q` against the rows of `k`. Errs only towards partial.
  ANNULUS_FUNCTION Coverage classify(const PositionMap& q, const PositionMap& k) const;
};

/// An attention mask over a sequence of known length; owns what its MaskRule borrows. Copies share nothing.
///
/// Text form, terms joined by '+' (their intersection):
/// `full` | `causal` | `window:L,R` (q−L ≤ k ≤ q+R) | `dilated:W,D` (k = q − i·D, 0 ≤ i < W) |
/// `documents:0,a,b,…` (start offsets, the length may close the list; causal inside each document) |
/// `blocks:SIZE,FILE` (docs/formats/block-mask.md).
class Mask {
 public:
  Mask() = default;  ///< `full` over zero tokens

  /// Reads the text form for a sequence of `tokens` tokens. Throws Error naming `field` and the term.
  static Mask parse(std::string_view text, std::int64_t tokens, std::string_view field = "mask");

  /// `text` joined with causal documents that start at `starts` (increasing from 0): how training builds the
  /// mask of a sequence from the document boundaries of its shard. `text` may be `documents` alone, or join other terms.
  static Mask with_documents(std::string_view text, std::int64_t tokens, std::span<const std::int64_t> starts,
                             std::string_view field = "mask");

  /// The text that was parsed.
  const std::string& to_string() const { return text_; }
  std::int64_t tokens() const { return rule_.tokens; }

  /// Rule for host code; its pointers live as long as this mask is neither changed nor destroyed.
  MaskRule rule() const;

  std::span<const std::int64_t> document_starts() const { return document_starts_; }
  std::span<const std::int64_t> block_row_starts() const { return block_row_starts_; }
  std::span<const std::int64_t> block_columns() const { return block_columns_; }

  /// Exact number of unmasked (query, key) pairs of one head between two sets of rows.
  std::int64_t pairs(const PositionMap& q, const PositionMap& k) const;

  /// Exactly pairs(q, k) == 0, found sooner.
  bool is_empty(const PositionMap& q, const PositionMap& k) const;

 private:
  MaskRule rule_;  // its pointers stay null; rule() fills them in
  std::string text_ = "full";
  std::vector<std::int64_t> document_starts_, block_row_starts_, block_columns_;
};

// --- Inline device code -----------------------------------------------------------------------------------

ANNULUS_FUNCTION inline KeyRange MaskRule::keys(std::int64_t q) const {
  std::int64_t begin = left >= q ? 0 : q - left;
  std::int64_t end = right >= tokens - 1 - q ? tokens : q + right + 1;
  if (document_starts != nullptr) {
    std::int64_t low = 0, high = documents;  // the last document that starts at or before q
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (document_starts[middle] <= q ? low : high) = middle;
    }
    if (begin < document_starts[low]) begin = document_starts[low];
    if (end > document_starts[low + 1]) end = document_starts[low + 1];
  }
  if (dilation > 1 && begin < end) {  // begin moves up to the residue of q; q − begin may be negative
    std::int64_t distance = (q - begin) % dilation;
    if (distance < 0) distance += dilation;
    begin += distance;
  }
  return {begin, end, dilation};
}

ANNULUS_FUNCTION inline bool MaskRule::block_allows(std::int64_t q, std::int64_t k) const {
  if (block_row_starts == nullptr) return true;
  const std::int64_t row = q / block_size, column = k / block_size;
  std::int64_t low = block_row_starts[row], high = block_row_starts[row + 1];
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (block_columns[middle] == column) return true;
    if (block_columns[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return false;
}

ANNULUS_FUNCTION inline bool MaskRule::allows(std::int64_t q, std::int64_t k) const {
  return keys(q).contains(k) && block_allows(q, k);
}

}  // namespace annulus
