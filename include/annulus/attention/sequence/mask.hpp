#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

namespace detail {
struct BlockList;
struct MaskTerms;
}  // namespace detail

/// An attention mask over a sequence of known length; owns what its MaskRule borrows. Copies share the block
/// list, which never changes.
///
/// Text form, terms joined by '+' (their intersection):
/// `full` | `causal` | `window:L,R` (q−L ≤ k ≤ q+R) | `dilated:W,D` (k = q − i·D, 0 ≤ i < W) |
/// `documents:0,a,b,…` (start offsets, the length may close the list; causal inside each document) |
/// `blocks:SIZE,FILE` (docs/formats/block-mask.md).
class Mask {
 public:
  /// Longest sequence: numbers of pairs stay exact.
  static constexpr std::int64_t max_tokens = std::int64_t{1} << 31;

  Mask() = default;  ///< `full` over zero tokens

  /// Reads the text form for a sequence of `tokens` tokens. Throws Error naming `field` and the term.
  static Mask parse(std::string_view text, std::int64_t tokens, std::string_view field = "mask");

  /// `text` joined with causal documents that start at `starts` (increasing from 0): how training builds the
  /// mask of a sequence from the document boundaries of its shard. `text` is any mask but `full`; it may join
  /// the term `documents` without start offsets.
  static Mask with_documents(std::string_view text, std::int64_t tokens, std::span<const std::int64_t> starts,
                             std::string_view field = "mask");

  /// This mask with documents that start at `starts`, in the place of its own where it has some. The block
  /// list is this mask's: no file is read. Throws Error like with_documents.
  Mask with_other_documents(std::span<const std::int64_t> starts, std::string_view field = "mask") const;

  /// The text that was parsed; with_documents puts in the start offsets, so that parse reads it again.
  const std::string& to_string() const { return text_; }
  std::int64_t tokens() const { return rule_.tokens; }

  /// The text without start offsets and the name of the block list's file: "causal+documents+blocks:128".
  const std::string& outline() const { return outline_; }
  /// Hashes of the start offsets of the documents and of the block list (Fingerprint); made with the mask.
  std::uint64_t documents_fingerprint() const { return documents_fingerprint_; }
  std::uint64_t blocks_fingerprint() const { return blocks_fingerprint_; }

  /// Rule for host code; its pointers live as long as this mask is neither changed nor destroyed.
  MaskRule rule() const;

  std::span<const std::int64_t> document_starts() const { return document_starts_; }
  std::span<const std::int64_t> block_row_starts() const;
  std::span<const std::int64_t> block_columns() const;

  /// Exact number of unmasked (query, key) pairs of one head between two sets of rows.
  std::int64_t pairs(const PositionMap& q, const PositionMap& k) const;

  /// Exactly pairs(q, k) == 0, found sooner.
  bool is_empty(const PositionMap& q, const PositionMap& k) const;

 private:
  /// Without `with_blocks` the block list is read from its file, else it is that of `with_blocks`.
  Mask(const detail::MaskTerms& terms, std::string text, std::int64_t tokens, std::string_view field,
       const Mask* with_blocks = nullptr);

  MaskRule rule_;  // its pointers stay null; rule() fills them in
  std::string text_ = "full", outline_ = "full";
  std::uint64_t documents_fingerprint_ = 0, blocks_fingerprint_ = 0;
  std::vector<std::int64_t> document_starts_;
  std::shared_ptr<const detail::BlockList> blocks_;  // one for all copies: it may have half a GiB
};

/// Layers of a model that share a mask.
struct MaskedLayers {
  Mask mask;
  int layers = 1;
};

}  // namespace annulus
