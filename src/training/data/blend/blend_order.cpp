#include "training/data/blend/blend_order.hpp"

#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::data {

namespace {

/// Products of counts and weights, which 64 bits need not hold.
__extension__ using Wide = __int128;

constexpr std::int64_t most_weight = std::int64_t{1} << 60;

}  // namespace

BlendOrder::BlendOrder(std::vector<Set> sets, bool shuffle) : sets_(std::move(sets)), shuffle_(shuffle) {
  require(!sets_.empty(), "an order of the sequences of no sets was asked for: give one at least");
  for (const Set& set : sets_) {
    require(set.weight > 0 && set.weight <= most_weight - weights_,
            "a set has weight {}: give a positive one, and a sum of at most {}", set.weight, most_weight);
    weights_ += set.weight;
  }
}

SequenceOrder BlendOrder::order_of(std::size_t set, const SetState& state) const {
  return SequenceOrder(state.sequences, sets_[set].seed, shuffle_);
}

BlendState BlendOrder::complete(const BlendState& state) const {
  require(state.empty() || state.size() == sets_.size(),
          "the state of {} sets was given for a blend of {}: give one for each set", state.size(),
          sets_.size());
  BlendState complete = state;
  complete.resize(sets_.size());
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    SetState& set = complete[i];
    if (set.sequences == 0) set.sequences = sets_[i].sequences;
    require(set.sequences <= sets_[i].sequences && set.drawn >= 0,
            "reading cannot go on in an epoch of {} sequences: the data has {}; resume with the data and the "
            "sequence length that the state was saved with",
            set.sequences, sets_[i].sequences);
    order_of(i, set).advance(set.at, 0);
  }
  return complete;
}

std::size_t BlendOrder::due(const BlendState& state) const {
  if (sets_.size() == 1) return 0;
  std::int64_t all = 0;  // sequences of all sets
  for (const SetState& set : state) all += set.drawn;
  std::size_t due = sets_.size();
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const bool may = Wide(state[i].drawn) * weights_ < Wide(all + 1) * sets_[i].weight;
    if (!may) continue;
    if (due == sets_.size() ||
        Wide(state[i].drawn + 1) * sets_[due].weight < Wide(state[due].drawn + 1) * sets_[i].weight)
      due = i;
  }
  ANNULUS_ASSERT(due < sets_.size());
  return due;
}

BlendOrder::Draw BlendOrder::next(BlendState& state) const {
  const std::size_t set = due(state);
  SetState& of = state[set];
  const SequenceOrder order = order_of(set, of);
  const Draw draw{set, order(of.at)};
  const std::int64_t epoch = of.at.epoch;
  of.at = order.advance(of.at, 1);
  if (of.at.epoch != epoch) of.sequences = sets_[set].sequences;
  ++of.drawn;
  return draw;
}

void BlendOrder::skip(BlendState& state, std::int64_t count) const {
  for (std::int64_t i = 0; i < count; ++i) next(state);
}

}  // namespace annulus::data
