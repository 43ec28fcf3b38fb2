#include "training/data/windows.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

namespace annulus::data {

Windows::Windows(const TokenDataset& dataset, std::int64_t stride)
    : dataset_(dataset), stride_(stride), count_(dataset.sequences()) {
  const std::int64_t length = dataset.sequence_tokens();
  require(stride >= 0 && stride <= length,
          "a stride of {} tokens between windows of {}: give 1 to {}, so that every token is scored", stride,
          length, length);
  if (stride > 0) count_ = 1 + ceil_divide(dataset.tokens() - 1 - length, stride);
}

Sequence Windows::read(std::int64_t index, const PositionMap& rows) const {
  if (stride_ == 0) return dataset_.read(index, rows);
  require(index >= 0 && index < count_, "window {} was asked for; there are {}", index, count_);
  const std::int64_t length = dataset_.sequence_tokens(), last = dataset_.tokens() - 1 - length,
                     begin = std::min(index * stride_, last),
                     scored = index == 0 ? 0 : (index - 1) * stride_ + length - begin;
  Sequence sequence = dataset_.read_from(begin, rows);
  sequence.index = index;
  std::fill_n(sequence.targets.begin(), rows.rows_below(scored), ignored_target);
  return sequence;
}

}  // namespace annulus::data
