#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/mask_on.hpp"
#include "attention/sparsity/document_spans.hpp"

namespace annulus::sparsity {

/// The documents of the sequences of a batch, on the host and in memory of the execution space.
template <class Exec>
class Documents {
 public:
  /// Each sequence is one document.
  explicit Documents(std::int64_t tokens) : sets_(1, {0, tokens}), spans_{.tokens = tokens} {}
  /// `sets`: where the documents of all sequences start, closed by `tokens`, or those of each sequence.
  Documents(const Exec& exec, std::int64_t tokens, std::vector<std::vector<std::int64_t>> sets)
      : packed_(true), sets_(std::move(sets)) {
    for (const std::vector<std::int64_t>& set : sets_) {
      numbers_.push_back(std::ssize(starts_));
      starts_.insert(starts_.end(), set.begin(), set.end());
    }
    numbers_.push_back(std::ssize(starts_));
    starts_on_.set(exec, "annulus::sparsity::document_starts", starts_);
    set_begins_on_.set(exec, "annulus::sparsity::document_sets", numbers_);
    spans_ = {tokens, starts_on_.data(), set_begins_on_.data(), std::ssize(sets_)};
  }
  Documents(const Documents&) = delete;
  Documents& operator=(const Documents&) = delete;
  ~Documents() { starts_on_.wait_for_copy(), set_begins_on_.wait_for_copy(); }

  /// Whether the mask has documents, be they one.
  bool packed() const { return packed_; }
  /// 1, or one for each sequence.
  std::int64_t sets() const { return std::ssize(sets_); }
  /// Where documents start, closed by the sequence's tokens.
  std::span<const std::int64_t> of_set(std::int64_t set) const {
    return sets_[static_cast<std::size_t>(set)];
  }
  const DocumentSpans& spans() const { return spans_; }

 private:
  bool packed_ = false;
  std::vector<std::vector<std::int64_t>> sets_;
  std::vector<std::int64_t> starts_, numbers_;  // from which the copies are made
  attention::ValuesOn<Exec, std::int64_t> starts_on_, set_begins_on_;
  DocumentSpans spans_;
};

}  // namespace annulus::sparsity
