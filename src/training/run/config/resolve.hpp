#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/training/optimizer/options.hpp>
#include <annulus/training/run/config.hpp>

#include "prediction/step/setting.hpp"
#include "training/run/config/attention_inputs.hpp"

/// The configuration as those behind it take it: plain structs whose texts are parsed and whose `auto` is
/// chosen. All functions throw Error naming the key.
namespace annulus::training {

/// The attention of a run: what the plans of a pass are made from.
struct ResolvedAttention {
  std::string schedule;
  /// The problem of all sequences of a pass, or of one where each has documents of its own, under the first
  /// of `masks`.
  plan::Problem problem;
  std::vector<Mask> masks;         ///< distinct masks of layers; of one layout and schedule
  std::vector<int> mask_of_layer;  ///< index of `masks`, of each layer
  int sequences = 1;               ///< of a pass
  bool follows_documents = false;  ///< the mask is that of each sequence's own documents
  /// Starts of the documents in the masks that the first plans are made for. Under a fixed layout one
  /// document: no other documents take larger buffers.
  std::vector<std::int64_t> documents = {0};
  std::vector<std::int64_t> typical_documents = {0};  ///< starts that choices and predicted times are for
  bool chosen = false;                                ///< schedule or layout stood as auto
  /// Share of its pairs that layers attend to, of each mask: the mean of Config::predicted_densities.
  std::vector<double> densities = {1.0};
  /// Index of `masks`: that of the layers that select pairs (attention.sparsity).
  int selected_mask = 0;
  MakePlan make_plan;

  /// Each sequence is dealt to the ranks by its own documents (the layout `balanced`); how many rows a rank
  /// has of it does not change.
  bool cuts_sequences() const { return follows_documents && problem.layout.kind() == Layout::Kind::balanced; }
  /// This attention for sequences with the typical documents.
  ResolvedAttention with_typical_documents() const;
  /// The problem for sequences with these masks, one for each of `masks`, in which `balanced` is cut for
  /// them.
  plan::Problem arranged_for(std::span<const Mask> masks_of_layers) const;
};
/// Resolves attention for the context-parallel group of `topology`. Chooses where the configuration says
/// auto: every rank alike, from the same numbers.
ResolvedAttention resolve_attention(const Config& config, const Topology& topology,
                                    const AttentionInputs& inputs);
/// The attention of data.validation, whose sequences are of another length than those of `training`, one at a
/// time; nothing where the length is the same, or where there is no validation.
std::optional<ResolvedAttention> resolve_validation(const Config& config, const ResolvedAttention& training);

/// How attention is run. Throws Error where a run that computes in `type` on such a device can never use
/// attention.kernel.
executor::Settings attention_settings(const Config& config, bool on_gpu, DType type);

/// Resolves the model, its state and its memory policy in an optimizer step of a run on `world`.
/// memory.recompute is chosen by then.
prediction::Setting resolve_step(const Config& config, const Topology& world, bool on_gpu);

/// Which layers select pairs (step.sparsity), and in which optimizer steps.
struct SparseSteps {
  std::vector<bool> layers;
  std::int64_t dense_updates = 0;  ///< the first steps, which take all pairs
};

/// When attention is looked at (sparsity::AttentionAudit).
struct Audits {
  std::int64_t every = 0;    ///< optimizer steps from one to the next; 0: never
  std::int64_t queries = 0;  ///< of a sequence; 0: all
};

/// AdamW, its learning rate by step, and the bound of the gradient norm.
struct Optimizer {
  optimizer::AdamWOptions adamw;
  optimizer::LearningRateSchedule learning_rate;
  double clip_norm = 1;
};

/// When a rank writes its share of a checkpoint, and how.
struct Saving {
  enum class Writer : std::uint8_t {
    in_place,  ///< while the run waits
    snapshot,  ///< in the background, from a copy in the host's memory
    live       ///< in the background, from the host's memory itself, which AdamW changes behind the writer
  } writer = Writer::in_place;
  std::int64_t every = 0;                     ///< optimizer steps; 0: at the end and on signals only
  std::chrono::seconds stop_within{0};        ///< from a signal to the end of the run; 0: any number
  std::chrono::milliseconds file_timeout{0};  ///< of waits for files (Watchdog)
};

/// A run as learner and saver take it.
struct ResolvedRun {
  prediction::Setting step;
  executor::Settings attention;
  SparseSteps sparse;
  Audits audit;
  std::int64_t parts_every = 0;  ///< optimizer steps from one to the next that is timed by part; 0: none
  Optimizer optimizer;
  Saving saving;
};
/// Resolves all but the plans of attention, which resolve_attention does.
ResolvedRun resolve(const Config& config, const Topology& world, bool on_gpu);

}  // namespace annulus::training
