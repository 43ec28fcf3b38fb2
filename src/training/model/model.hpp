#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/attention/sparsity/audit.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/model/config.hpp>

#include "training/dump/recorder.hpp"
#include "training/model/backward_memory.hpp"
#include "training/model/parameter_access.hpp"
#include "training/model/parameters.hpp"
#include "training/model/pass_parts.hpp"

namespace annulus::model {

/// Sums over one rank's rows.
struct Loss {
  double sum = 0;          ///< of the cross-entropies, in nats
  std::int64_t valid = 0;  ///< targets that are not ignored
};

/// Forward passes of attention over layers, counted.
struct AttentionCalls {
  std::int64_t all = 0;     ///< of all queries, the first time or again
  std::int64_t early = 0;   ///< again, of those before ActivationOptions::early_positions
  std::int64_t sparse = 0;  ///< among `all`: over selected pairs; those of early queries are in none

  AttentionCalls& operator+=(const AttentionCalls& more) {
    all += more.all;
    early += more.early;
    sparse += more.sparse;
    return *this;
  }
};

/// The attention of each layer: one for all, or one for each, of which several may be the same.
template <class Exec, class T>
class LayerAttention {
 public:
  using Attention = executor::Attention<Exec, T>;
  LayerAttention(Attention& of_all) : of_all_(&of_all) {}
  LayerAttention(std::span<Attention* const> by_layer) : by_layer_(by_layer) {}

  Attention& of(int layer) const {
    return of_all_ != nullptr ? *of_all_ : *by_layer_[static_cast<std::size_t>(layer)];
  }
  /// There is one for each of so many layers.
  bool fits(int layers) const { return of_all_ != nullptr || std::ssize(by_layer_) == layers; }

 private:
  Attention* of_all_ = nullptr;
  std::span<Attention* const> by_layer_;
};

/// This rank's rows of the sequences of a pass, one sequence after the other, on the host: (sequences · rows)
/// each. Target −1 is ignored.
struct TokenRows {
  std::span<const std::int32_t> tokens, targets;
  /// Positions of the rows of each sequence, where sequences have their own (Model::Options::own_positions).
  std::span<const PositionMap> positions = {};
};

/// A LLaMA with explicit forward and backward over sequences that are spread over the ranks of a
/// context-parallel group. A pass works on a fixed number of sequences at once. Every layer works on this
/// rank's rows alone but for attention, which runs a distributed plan. Holds activations and workspace for
/// the rows of a pass, but no parameters: it asks for those unit by unit (ParameterAccess).
///
/// T, float or bfloat16, is the type of weights, activations, the residual stream and the gradients of
/// activations; attention's output is kept in it. Sums inside kernels and over the steps of attention, and
/// the gradients of weights, are fp32. Exec is HostExec or the device's space.
template <class Exec, class T>
class Model {
 public:
  using Attention = executor::Attention<Exec, T>;

  struct Options {
    int sequences = 1;  ///< of a pass: the batch of its attention
    /// How layers hold their activations. With early_positions > 0, the attention of passes has a plan for
    /// them (Plans::recompute).
    ActivationOptions activations = {};
    /// For what layers keep (ModelArrays::kept), shared with gradients, or with a model that trains where
    /// `activations` are forward_only; null: of its own.
    std::shared_ptr<BackwardMemory<Exec>> backward = nullptr;
    /// Every pass tells the positions of its sequences (TokenRows::positions), of which the rank always has
    /// as many. Not with early_positions.
    bool own_positions = false;
  };
  /// `positions` are this rank's rows of every sequence to come, or, with own_positions, of one of them.
  Model(const Exec& exec, const Config& config, const PositionMap& positions, const Options& options);
  Model(const Exec& exec, const Config& config, const PositionMap& positions)
      : Model(exec, config, positions, Options{}) {}
  ~Model();

  const ParameterMap& parameter_map() const;

  /// Layers that attend to selected pairs (sparsity::SparseAttention), which each selects in its forward pass
  /// and keeps for its backward pass.
  struct Sparse {
    sparsity::SparseAttention<Exec, T>& attention;
    std::vector<bool> layers;  ///< of the model's, whether it does
  };

  /// What a pass works with.
  struct Pass {
    LayerAttention<Exec, T> attention;
    ParameterAccess<Exec, T>& parameters;
    dump::Recorder* recorder = nullptr;  ///< gets tensors (docs/formats/tensor-dump.md names them)
    const Sparse* sparse = nullptr;      ///< null: all layers attend to all pairs
    /// Looks at the attention of each layer in the backward pass; null: nobody does.
    sparsity::AttentionAudit<Exec, T>* audit = nullptr;
    /// Called behind each call to `parameters`, with the part that has made it; empty: nobody looks.
    std::function<void(const PassPart&)> behind_call = {};
  };

  /// A forward and a backward pass: adds the loss to what take_loss gives, and the gradient of grad_scale · Σ
  /// cross-entropy to those of the parameters. Collective over the ranks of `attention`. Only enqueues work:
  /// the host does not wait but for what attention exchanges, for parameters that are not there yet, for each
  /// tensor where there is a recorder, and for an audit.
  void train(const Exec& exec, const TokenRows& rows, float grad_scale, const Pass& pass);

  /// A forward pass alone, with the weights as they are: `losses` (sequences · rows) gets the cross-entropies
  /// of the rows, in nats, 0 where the target is ignored, and `greedy`, as long or empty, 1 where the target
  /// is the greedy choice (loss::LmHeadLoss::Greedy). Leaves what train computes as it is, but takes the
  /// memory of activations and gradients (Options::backward). Collective over the ranks of `attention`. Waits
  /// for the work on `exec`.
  void evaluate(const Exec& exec, const TokenRows& rows, const Pass& pass, std::span<double> losses,
                std::span<std::uint8_t> greedy = {});

  /// A forward pass alone, as evaluate: `logits` (vocabulary) gets those of row `row` of `rows`, from 0: what
  /// the model makes of the token behind it. Targets do not count.
  void logits(const Exec& exec, const TokenRows& rows, const Pass& pass, std::int64_t row,
              std::span<float> logits);

  /// `sums` (sequences of a pass) gets the sums of the cross-entropies of the last pass's sequences, of this
  /// rank's rows. Only enqueues work.
  void sequence_losses(const Exec& exec, const Array1<double, Exec>& sums);

  /// The loss of the passes since the last call. Waits for the work on `exec`.
  Loss take_loss(const Exec& exec);
  /// Calls of attention in each layer since the last call of this.
  std::vector<AttentionCalls> take_attention_calls();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::model
