#pragma once

#include "training/data/dataset.hpp"

namespace annulus::data {

/// The stream of a data set as windows of its sequence_tokens() tokens, for evaluation. With a stride each
/// starts so many tokens behind the one before, and the last one ends with the stream (sliding-window
/// evaluation; Baevski and Auli 2019, section 4.4). A window has the targets that no window before it has:
/// the first one all of its own, others their last `stride`, before which at least sequence_tokens() - stride
/// tokens stand. So every token of the stream but its first is the target of one window.
class Windows {
 public:
  /// `stride` is from 1 to sequence_tokens(), or 0: the sequences of the data set, without what is left
  /// behind the last one. `dataset` outlives this. Throws Error naming the stride.
  Windows(const TokenDataset& dataset, std::int64_t stride);

  std::int64_t count() const { return count_; }

  /// The rows `rows` of window `index`, which is the sequence's index. Targets of other windows are ignored.
  Sequence read(std::int64_t index, const PositionMap& rows) const;

 private:
  const TokenDataset& dataset_;
  std::int64_t stride_, count_;
};

}  // namespace annulus::data
