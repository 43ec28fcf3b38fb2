#pragma once

#include <annulus/base/device_code.hpp>
#include <cstdint>

namespace annulus::sparsity {

/// Positions begin … end − 1.
struct DocumentSpan {
  std::int64_t begin = 0, end = 0;
  ANNULUS_FUNCTION std::int64_t tokens() const { return end - begin; }
};

/// Where the documents of each sequence of a batch lie.
struct DocumentSpans {
  std::int64_t tokens = 0;  ///< of a sequence
  const std::int64_t* starts =
      nullptr;  ///< of each set, closed by `tokens`; null: a sequence is one document
  const std::int64_t* set_begins = nullptr;  ///< (sets + 1): where the starts of a set begin
  std::int64_t sets = 1;                     ///< 1, or one for each sequence

  /// The document that holds a position.
  ANNULUS_FUNCTION DocumentSpan of(std::int64_t sequence, std::int64_t position) const {
    if (starts == nullptr) return {0, tokens};
    const std::int64_t set = sets == 1 ? 0 : sequence;
    std::int64_t low = set_begins[set], high = set_begins[set + 1] - 1;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (starts[middle] <= position ? low : high) = middle;
    }
    return {starts[low], starts[low + 1]};
  }
};

/// Whether a document is so short that all its pairs are selected, by the part dense-below of a pattern.
ANNULUS_FUNCTION inline bool is_dense(const DocumentSpan& document, std::int64_t dense_below) {
  return document.tokens() < dense_below;
}

}  // namespace annulus::sparsity
