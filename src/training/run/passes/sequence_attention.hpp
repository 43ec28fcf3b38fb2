#pragma once

#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <span>
#include <typeinfo>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/execution/region.hpp"
#include "training/data/dataset.hpp"
#include "training/model/model.hpp"
#include "training/run/passes/sequence_plans.hpp"

namespace annulus::training {

/// The distributed attention of a run, of each mask of layers. Its plans are made, and what runs is proved,
/// anew where the documents of a pass' sequences change them: wrong plans end the run before the optimizer
/// step that they are for.
template <class Exec, class T>
class SequenceAttention {
 public:
  using Attention = executor::Attention<Exec, T>;

  SequenceAttention(const Exec& exec, comm::Communicator& context, const executor::Settings& settings,
                    const SequencePlans& plans)
      : SequenceAttention(exec, context, settings, plans, plans.make()) {}

  /// The attention of layers for the sequences of a pass. Valid as long as this object is.
  model::LayerAttention<Exec, T> for_pass(const Exec& exec, std::span<const data::Sequence> sequences) {
    const Kokkos::Timer timer;
    bool changed = false;
    for (int i = 0; i < plans_.attention().sequences; ++i) {
      const data::Sequence& sequence = sequences[static_cast<std::size_t>(i)];
      changed |= plans_.follow(i, sequence.document_starts, sequence.held);
    }
    if (changed) {
      const Region region("annulus::training::plan");
      const std::vector<SequencePlans::Prepared> prepared = plans_.prepared();
      for (std::size_t i = 0; i < prepared.size(); ++i) {
        set_plans(exec, attentions_[i], prepared[i], sequences);
        pairs_[i] = prepared[i].pairs;
      }
      planning_seconds_ += timer.seconds();
    }
    return std::span<Attention* const>(of_layer_);
  }

  const SequencePlans& plans() const { return plans_; }
  Attention& attention(int mask) { return attentions_[static_cast<std::size_t>(mask)]; }

  /// Pairs of this rank, in a call for the sequences of the last pass.
  const RankPairs& pairs(int mask) const { return pairs_[static_cast<std::size_t>(mask)]; }

  void reset_times() {
    for (Attention& attention : attentions_) attention.reset_times();
    planning_seconds_ = 0;
  }
  double computing_seconds() const { return times().computing; }
  double exposed_communication_seconds() const { return times().exposed_communication; }
  /// The share of the time of its plan steps in which it computes; 1 where nothing takes time.
  double computation_ratio() const {
    const auto [exposed_communication, computing] = times();
    const double all = computing + exposed_communication;
    return all > 0 ? computing / all : 1;
  }
  /// Spent by for_pass on new masks and plans, and on their proof, as far as readers have not made them
  /// ahead. Where ranks agree on them here it counts on every rank alike.
  double planning_seconds() const { return planning_seconds_; }

 private:
  SequenceAttention(const Exec& exec, comm::Communicator& context, const executor::Settings& settings,
                    const SequencePlans& plans, const std::vector<std::vector<executor::Plans>>& made)
      : plans_(plans) {
    attentions_.reserve(made.size());
    for (const std::vector<executor::Plans>& of_mask : made) {
      RankPairs& pairs = pairs_.emplace_back();
      for (const executor::Plans& of_sequence : of_mask) pairs += rank_pairs(of_sequence, context.rank());
      if (attentions_.empty())
        attentions_.emplace_back(exec, context, of_mask, settings);
      else  // layers attend one after the other
        attentions_.emplace_back(exec, of_mask, attentions_.front());
    }
    const std::vector<std::vector<executor::Plans>> largest = plans.largest();
    for (std::size_t i = 0; i < largest.size(); ++i)
      for (const executor::Plans& of_sequence : largest[i]) attentions_[i].reserve(exec, of_sequence);
    if (plans.attention().follows_documents)
      for (Attention& attention : attentions_) attention.reserve_documents(exec);
    plans_.prepare_with(attentions_.front().preparation(exec));
    for (const int mask : plans.attention().mask_of_layer)
      of_layer_.push_back(&attentions_[static_cast<std::size_t>(mask)]);
  }

  /// Errors name the sequences.
  static void set_plans(const Exec& exec, Attention& attention, const SequencePlans::Prepared& prepared,
                        std::span<const data::Sequence> sequences) {
    try {
      attention.set_plans(exec, prepared.plans, prepared.agreed);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) throw;  // others are caught by their types
      std::vector<std::int64_t> indices;
      for (const data::Sequence& sequence : sequences) indices.push_back(sequence.index);
      fail("attention over the sequences {} of the data: {}", fmt::join(indices, ", "), error.what());
    }
  }

  typename Attention::Times times() const {
    typename Attention::Times sum;
    for (const Attention& attention : attentions_) {
      const auto [exposed_communication, computing] = attention.times();
      sum.exposed_communication += exposed_communication;
      sum.computing += computing;
    }
    return sum;
  }

  SequencePlans plans_;
  // Of each mask:
  std::vector<RankPairs> pairs_;
  std::vector<Attention> attentions_;
  std::vector<Attention*> of_layer_;  // those of attentions_
  double planning_seconds_ = 0;
};

}  // namespace annulus::training
