#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "training/data/dataset.hpp"
#include "training/model/model.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/passes/sequence_attention.hpp"

namespace annulus::training {

/// A model with its attention, for passes over sequences of one length.
template <class Exec, class T>
struct SequenceModel {
  /// `backward` has the memory of activations (model::Model::Options).
  SequenceModel(const Exec& exec, comm::Communicator& context, const ResolvedRun& run,
                const model::ActivationOptions& activations, const SequencePlans& plans,
                std::shared_ptr<model::BackwardMemory<Exec>> backward)
      : attention(exec, context, run.attention, plans),
        model(exec, run.step.model, plans.rows(),
              {.sequences = plans.attention().sequences,
               .activations = activations,
               .backward = std::move(backward),
               .own_positions = plans.attention().cuts_sequences()}) {
    if (!run.step.sparsity) return;
    const int mask = plans.attention().selected_mask;
    plan::Problem problem = plans.problem();
    problem.mask = plans.attention().masks[static_cast<std::size_t>(mask)];
    sparse_attention.emplace(context, attention.attention(mask), problem, *run.step.sparsity,
                             run.attention.kernel, run.step.keeps_columns);
    sparse.emplace(*sparse_attention, run.sparse.layers);
  }

  /// Ids of sequences one after the other, as a pass takes them. Valid until the next call, and as long as
  /// the sequences are.
  model::TokenRows rows_of(std::span<const data::Sequence> sequences) {
    tokens_.clear();
    targets_.clear();
    positions_.clear();
    for (const data::Sequence& sequence : sequences) {
      tokens_.insert(tokens_.end(), sequence.tokens.begin(), sequence.tokens.end());
      targets_.insert(targets_.end(), sequence.targets.begin(), sequence.targets.end());
      if (attention.plans().attention().cuts_sequences()) positions_.push_back(sequence.rows);
    }
    return {.tokens = tokens_, .targets = targets_, .positions = positions_};
  }

  /// The attention for the sequences of a pass, and the documents of which layers select. Valid as long as
  /// this object is.
  model::LayerAttention<Exec, T> for_pass(const Exec& exec, std::span<const data::Sequence> sequences) {
    const model::LayerAttention<Exec, T> made = attention.for_pass(exec, sequences);
    const SequencePlans& plans = attention.plans();
    if (sparse_attention && plans.attention().follows_documents)
      sparse_attention->set_masks(exec, plans.masks(plans.attention().selected_mask));
    return made;
  }

  /// A forward pass alone over `sequences`: `losses` (sequences · rows) gets the cross-entropies of this
  /// rank's rows, and `greedy` what Model::evaluate says. `is_sparse`: layers of `sparse` attend to selected
  /// pairs. Collective.
  void evaluate(const Exec& exec, std::span<const data::Sequence> sequences,
                model::ParameterAccess<Exec, T>& parameters, bool is_sparse, std::span<double> losses,
                std::span<std::uint8_t> greedy) {
    model.evaluate(exec, rows_of(sequences),
                   {.attention = for_pass(exec, sequences),
                    .parameters = parameters,
                    .sparse = is_sparse ? &*sparse : nullptr},
                   losses, greedy);
    if (is_sparse) sparse_attention->check_pairs(exec);
  }

  SequenceAttention<Exec, T> attention;
  model::Model<Exec, T> model;
  std::optional<sparsity::SparseAttention<Exec, T>> sparse_attention;  // of attention.sparsity
  std::optional<typename model::Model<Exec, T>::Sparse> sparse;        // of attention.sparsity

 private:
  std::vector<std::int32_t> tokens_, targets_;  // (sequences · rows)
  std::vector<PositionMap> positions_;          // of each sequence, where it has its own
};

}  // namespace annulus::training
