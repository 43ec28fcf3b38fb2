#include <annulus/attention/sequence/mask.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/fingerprint.hpp"
#include "block_list.hpp"
#include "mask_terms.hpp"
#include "pair_count.hpp"

namespace annulus {

namespace {

/// (width − 1)·distance, the reach of a dilated row, without overflow.
std::int64_t dilated_reach(const detail::MaskTerms::DilatedTerm& dilated) {
  if (dilated.width - 1 > MaskRule::unbounded / dilated.distance) return MaskRule::unbounded;
  return (dilated.width - 1) * dilated.distance;
}

/// Start offsets closed by the length of the sequence.
std::vector<std::int64_t> closed_starts(std::vector<std::int64_t> starts, std::int64_t tokens,
                                        const std::string& context) {
  require(!starts.empty() && starts.front() == 0,
          "{}: the documents start at {}: the first one must start at token 0", context,
          starts.empty() ? std::string("no token") : std::to_string(starts.front()));
  for (std::size_t d = 1; d < starts.size(); ++d)
    require(starts[d - 1] < starts[d],
            "{}: document {} starts at {}, not behind {}, where the one before it starts: "
            "list strictly increasing start offsets",
            context, d, starts[d], starts[d - 1]);
  require(starts.back() <= tokens,
          "{}: a document starts at {}, behind the end of the sequence of {} tokens: "
          "drop it or use a longer sequence",
          context, starts.back(), tokens);
  if (starts.back() < tokens) starts.push_back(tokens);
  return starts;
}

void require_no_full(const detail::MaskTerms& terms, std::string_view text, std::string_view field) {
  require(!terms.full, "{} = '{}': documents are causal and do not join with 'full': write 'documents'",
          field, detail::abbreviated(text));
}

}  // namespace

Mask Mask::parse(std::string_view text, std::int64_t tokens, std::string_view field) {
  const detail::MaskTerms terms = detail::parse_mask_terms(text, field);
  require(!terms.documents || !terms.documents->starts.empty(),
          "{} = '{}': the term 'documents' gives no start offsets and no data give them here: "
          "write documents:0,a,b,…",
          field, detail::abbreviated(text));
  return Mask(terms, std::string(text), tokens, field);
}

Mask Mask::with_documents(std::string_view text, std::int64_t tokens, std::span<const std::int64_t> starts,
                          std::string_view field) {
  detail::MaskTerms terms = detail::parse_mask_terms(text, field);
  require_no_full(terms, text, field);
  require(
      !terms.documents || terms.documents->starts.empty(),
      "{} = '{}': the term 'documents' lists start offsets, but the data give them: write 'documents' alone",
      field, detail::abbreviated(text));
  terms.documents = detail::MaskTerms::DocumentsTerm{{starts.begin(), starts.end()}};
  return Mask(terms, detail::to_string(terms), tokens, field);
}

Mask Mask::with_other_documents(std::span<const std::int64_t> starts, std::string_view field) const {
  detail::MaskTerms terms = detail::parse_mask_terms(text_, field);
  require_no_full(terms, text_, field);
  terms.documents = detail::MaskTerms::DocumentsTerm{{starts.begin(), starts.end()}};
  return Mask(terms, detail::to_string(terms), tokens(), field, this);
}

Mask::Mask(const detail::MaskTerms& terms, std::string text, std::int64_t tokens, std::string_view field,
           const Mask* with_blocks)
    : text_(std::move(text)), outline_(detail::outline(terms)) {
  const std::string context = fmt::format("{} = '{}'", field, detail::abbreviated(text_));
  require(tokens >= 0 && tokens <= max_tokens,
          "{}: a sequence of {} tokens: lengths from 0 to {} are possible", context, tokens, max_tokens);
  rule_.tokens = tokens;
  if (terms.causal || terms.documents) rule_.right = 0;
  if (terms.window) {
    rule_.left = std::min(rule_.left, terms.window->left);
    rule_.right = std::min(rule_.right, terms.window->right);
  }
  if (terms.dilated) {
    rule_.left = std::min(rule_.left, dilated_reach(*terms.dilated));
    rule_.right = 0;
    rule_.dilation =
        std::min(terms.dilated->distance, std::max<std::int64_t>(tokens, 1));  // no key is further away
  }
  if (terms.documents) {
    document_starts_ = closed_starts(terms.documents->starts, tokens, context);
    rule_.documents = static_cast<std::int64_t>(document_starts_.size()) - 1;
    std::int64_t longest = 0;
    for (std::size_t d = 1; d < document_starts_.size(); ++d)
      longest = std::max(longest, document_starts_[d] - document_starts_[d - 1]);
    rule_.left = std::min(rule_.left, std::max<std::int64_t>(longest - 1, 0));  // no key is further away
  }
  if (terms.blocks) {
    rule_.block_size = std::min(terms.blocks->size, std::max<std::int64_t>(tokens, 1));
    if (with_blocks != nullptr) {
      blocks_ = with_blocks->blocks_;
    } else {
      const std::int64_t blocks = ceil_divide(tokens, rule_.block_size);
      blocks_ = std::make_shared<const detail::BlockList>(
          detail::read_block_list(terms.blocks->file, blocks, context));
    }
  }
  Fingerprint documents;
  documents.add(document_starts_);
  documents_fingerprint_ = documents.value();
  if (with_blocks != nullptr) {
    blocks_fingerprint_ = with_blocks->blocks_fingerprint_;
  } else {
    Fingerprint blocks;
    blocks.add(block_row_starts());
    blocks.add(block_columns());
    blocks_fingerprint_ = blocks.value();
  }
}

MaskRule Mask::rule() const {
  MaskRule rule = rule_;
  if (!document_starts_.empty()) rule.document_starts = document_starts_.data();
  if (blocks_ != nullptr) {
    rule.block_row_starts = blocks_->row_starts.data();
    rule.block_columns = blocks_->columns.data();
  }
  return rule;
}

std::span<const std::int64_t> Mask::block_row_starts() const {
  return blocks_ == nullptr ? std::span<const std::int64_t>() : blocks_->row_starts;
}

std::span<const std::int64_t> Mask::block_columns() const {
  return blocks_ == nullptr ? std::span<const std::int64_t>() : blocks_->columns;
}

std::int64_t Mask::pairs(const PositionMap& q, const PositionMap& k) const {
  return detail::count_pairs(rule(), q, k, std::numeric_limits<std::int64_t>::max());
}

bool Mask::is_empty(const PositionMap& q, const PositionMap& k) const {
  const MaskRule rule = this->rule();
  const Coverage coverage = rule.classify(q, k);
  return coverage == Coverage::empty ||
         (coverage == Coverage::partial && detail::count_pairs(rule, q, k, 1) == 0);
}

}  // namespace annulus
