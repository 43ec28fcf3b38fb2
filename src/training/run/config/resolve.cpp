#include "training/run/config/resolve.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <annulus/attention/comm/sums.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "prediction/step/update_time.hpp"
#include "training/model/parameters.hpp"
#include "training/run/saving/snapshot.hpp"

namespace annulus::training {

namespace {

bool has_choice(const Config::Attention& attention) {
  return attention.schedule == simulator::automatic || attention.layout == simulator::automatic;
}

/// Tokens of a sequence of validation that the model which trains cannot evaluate; 0: it can, or there is
/// none.
std::int64_t own_validation_length(const Config& config) {
  const std::int64_t tokens = config.validation_length();
  return tokens == config.data.sequence_length ? 0 : tokens;
}

std::vector<MaskedLayers> masked_layers(std::span<const Mask> masks, const std::vector<int>& mask_of_layer) {
  std::vector<MaskedLayers> layers;
  for (int i = 0; i < std::ssize(masks); ++i)
    layers.push_back(
        {masks[static_cast<std::size_t>(i)], static_cast<int>(std::ranges::count(mask_of_layer, i))});
  return layers;
}

/// Nothing asks for as many early rows in each batch (Config::check says what does not go with `balanced`).
bool may_cut_sequences(const Config& config) {
  return config.attention.sparsity.empty() &&
         std::ranges::find(config.memory.recompute, "sequence-selective") == config.memory.recompute.end();
}

Saving saving_of(const Config& config) {
  const bool only_last =
      config.checkpoint.every == 0 || (config.steps() > 0 && config.checkpoint.every >= config.steps());
  return {.writer = only_last                         ? Saving::Writer::in_place
                    : config.memory.offload_optimizer ? Saving::Writer::live
                                                      : Saving::Writer::snapshot,
          .every = config.checkpoint.every,
          .stop_within = std::chrono::seconds(config.run.stop_within),
          .file_timeout = config.file_stall_timeout()};
}

/// The mean of the layers of each mask.
std::vector<double> densities_of_masks(const Config& config, const LayerMasks& masks,
                                       std::span<const std::int64_t> documents) {
  const std::vector<double> of_layers = config.predicted_densities(documents);
  std::vector<double> sums(masks.distinct.size());
  for (std::size_t layer = 0; layer < of_layers.size(); ++layer)
    sums[static_cast<std::size_t>(masks.of_layer[layer])] += of_layers[layer];
  for (std::size_t mask = 0; mask < sums.size(); ++mask)
    sums[mask] /= static_cast<double>(std::ranges::count(masks.of_layer, static_cast<int>(mask)));
  return sums;
}

/// Times of attention beside what else travels in a layer; empty where nothing does. `ranks` share a
/// sequence. `config` and `cluster` outlive it.
simulator::LayerSeconds beside_all_of_a_layer(const Config& config, const Topology& world, int ranks,
                                              const simulator::Cluster& cluster) {
  Config known = config;
  if (config.chooses_recompute()) known.memory.recompute = {"selective"};
  const prediction::Setting step = resolve_step(known, world, true);
  if (step.state.stage < 2 && step.activations.offload == 0) return {};
  const prediction::RankShare share{
      .rows = {.sequences = step.sequences, .tokens = ceil_divide(step.tokens, std::int64_t{ranks})}};
  return [=, &config, &cluster](const std::string& schedule, const plan::Problem& problem,
                                const simulator::Selected& selected) {
    executor::Plans plans{.forward = plan::make_plan(schedule, problem, plan::Pass::forward),
                          .backward = plan::make_plan(schedule, problem, plan::Pass::backward)};
    if (step.activations.early_positions > 0) {
      plan::Problem early = problem;
      early.positions = step.activations.early_positions;
      plans.recompute = plan::make_plan(schedule, early, plan::Pass::forward);
    }
    // Attention goes through sequences with documents of their own one by one.
    const prediction::LayerAttention attention(plans, step.sequences / problem.batch, cluster,
                                               config.attention.overlap, selected);
    return prediction::attention_seconds(step, share, attention, cluster);
  };
}

}  // namespace

executor::Settings attention_settings(const Config& config, bool on_gpu, DType type) {
  const std::string& name = config.attention.kernel;
  const attention::Kernel kernel = attention::parse_kernel(name, "attention.kernel =");
  require(on_gpu || !on_tensor_cores(kernel),
          "attention.kernel = '{}' is for GPUs, but this run computes "
          "on the CPU (run.device = '{}'): use automatic",
          name, config.run.device);
  require(!on_gpu || kernel != attention::Kernel::host_simd,
          "attention.kernel = '{}' is for the CPU, but this run computes "
          "on a GPU (run.device = '{}'): use automatic",
          name, config.run.device);
  require(size_of(type) == 2 || !on_tensor_cores(kernel),
          "attention.kernel = '{}' takes 16-bit types: set train.dtype = 'bf16', or use automatic", name);
  executor::Settings settings;
  settings.kernel = kernel;
  settings.kernel.deterministic = config.attention.deterministic;
  settings.overlap = config.attention.overlap;
  settings.stall_timeout = config.stall_timeout();
  return settings;
}

plan::Problem ResolvedAttention::arranged_for(std::span<const Mask> masks_of_layers) const {
  const std::vector<MaskedLayers> layers = masked_layers(masks_of_layers, mask_of_layer);
  plan::Problem arranged = problem;
  arranged.mask = masks_of_layers.front();
  return plan::arranged_for(schedule, std::move(arranged), layers, "attention.schedule");
}

ResolvedAttention ResolvedAttention::with_typical_documents() const {
  ResolvedAttention made = *this;
  if (!follows_documents) return made;
  made.documents = typical_documents;
  for (Mask& mask : made.masks) mask = mask.with_other_documents(typical_documents, "attention.mask");
  made.problem = made.arranged_for(made.masks);
  return made;
}

ResolvedAttention resolve_attention(const Config& config, const Topology& topology,
                                    const AttentionInputs& inputs) {
  const Config::Attention& attention = config.attention;
  const LayerMasks of_layers = layer_masks(config);
  const auto whole = std::ranges::find(of_layers.distinct, attention.mask);  // of layers without a window
  ResolvedAttention made{.schedule = attention.schedule,
                         .problem = {},
                         .masks = inputs.masks,
                         .mask_of_layer = of_layers.of_layer,
                         .sequences = config.train.sequences_per_pass,
                         .follows_documents = takes_documents_from_data(attention.mask),
                         .documents = {0},
                         .typical_documents = inputs.documents,
                         .chosen = has_choice(attention),
                         .densities = densities_of_masks(config, of_layers, inputs.documents),
                         .selected_mask = whole == of_layers.distinct.end()
                                              ? 0
                                              : static_cast<int>(whole - of_layers.distinct.begin()),
                         .make_plan = inputs.make_plan};
  plan::Problem& problem = made.problem;
  problem.topology = topology;
  problem.heads = config.model.heads;
  problem.kv_heads = config.model.kv_heads;
  problem.head_dim = config.model.padded_head_dim();
  problem.batch = made.follows_documents ? 1 : made.sequences;
  problem.dtype = parse_dtype(config.train.dtype, "train.dtype");
  std::vector<Mask> typical = made.masks;
  if (made.follows_documents)
    for (Mask& mask : typical) mask = mask.with_other_documents(inputs.documents, "attention.mask");
  problem.mask = typical.front();
  const std::string& mask = attention.mask;
  require(problem.mask.rule().right == 0 || attention.see_targets,
          "attention.mask = '{}' lets a token attend to later ones, which it is to predict: {} "
          "(attention.see_targets = true allows it, for measuring speed)",
          mask, mask == "full" ? "use causal" : "join causal, as in causal+" + mask);
  if (made.chosen) {
    constexpr std::array passes = {plan::Pass::forward, plan::Pass::backward};
    std::vector<simulator::PredictedLayers> layers;  // where they differ
    for (std::size_t i = 0; typical.size() > 1 && i < typical.size(); ++i)
      layers.push_back({.mask = typical[i],
                        .layers = static_cast<int>(std::ranges::count(made.mask_of_layer, int(i))),
                        .selected = {made.densities[i]}});
    const simulator::Cluster cluster = inputs.cluster ? *inputs.cluster : simulator::default_cluster();
    simulator::ScheduleChoice choice = simulator::choose(
        problem, attention.schedule, attention.layout, passes, cluster,
        {.layers = std::move(layers),
         .fixed_layouts = !may_cut_sequences(config),
         .selected = {made.densities.front()},
         .layer_seconds =
             inputs.world ? beside_all_of_a_layer(config, *inputs.world, topology.ranks(), cluster) : nullptr,
         .schedule_field = "attention.schedule",
         .layout_field = "attention.layout"});
    made.schedule = std::move(choice.schedule);
    problem.layout = choice.layout;
  } else {
    problem.layout = Layout::parse(attention.layout, "attention.layout");
  }
  if (made.cuts_sequences()) {
    made.documents = inputs.documents;
    made.masks = std::move(typical);
  }
  problem = made.arranged_for(made.masks);
  return made;
}

std::optional<ResolvedAttention> resolve_validation(const Config& config, const ResolvedAttention& training) {
  const std::int64_t tokens = own_validation_length(config);
  if (tokens == 0) return std::nullopt;
  ResolvedAttention made = training;
  made.sequences = made.problem.batch = 1;
  made.documents = made.typical_documents = {0};
  try {
    made.masks = masks_of(config, tokens);
  } catch (const Error& error) {
    fail("data.validation_length = {}: {}", tokens, error.what());
  }
  made.problem = made.arranged_for(made.masks);
  return made;
}

prediction::Setting resolve_step(const Config& config, const Topology& world, bool on_gpu) {
  const DType type = parse_dtype(config.train.dtype, "train.dtype");
  const std::string& sparsity = config.attention.sparsity;
  const std::int64_t parameters = model::ParameterMap(config.model).size();
  return {
      .model = config.model,
      .type = type,
      .on_gpu = on_gpu,
      .topology = world,
      .tokens = config.data.sequence_length,
      .sequences = config.train.sequences_per_pass,
      .passes = config.train.passes(),
      .sets = std::max<std::int64_t>(1, std::ssize(config.data.sets)),
      .activations = config.activations(),
      .sparsity = sparsity.empty()
                      ? std::nullopt
                      : std::optional(sparsity::PatternOptions::parse(sparsity, "attention.sparsity")),
      .sparse_layers = static_cast<int>(std::ranges::count(config.sparse_layers(), true)),
      .keeps_columns = config.sparsity.keep_columns,
      .packed =
          annulus::detail::parse_mask_terms(config.attention.mask, "attention.mask").documents.has_value(),
      .state = {.stage = config.parallel.zero,
                .ranks = config.parallel.shard > 0 ? config.parallel.shard : world.ranks(),
                .weights = type,
                .offload = config.memory.offload_optimizer,
                .native_sums = comm::parse_sums(config.parallel.sums) == comm::Sums::native},
      .updates = {.decay = config.decaying(), .muon = config.uses_muon(), .momentum = config.train.momentum},
      .snapshot_bytes = saving_of(config).writer == Saving::Writer::snapshot
                            ? Snapshot::bytes(ceil_divide(parameters, std::int64_t{world.ranks()}))
                            : 0,
      .validation_tokens = own_validation_length(config)};
}

ResolvedRun resolve(const Config& config, const Topology& world, bool on_gpu) {
  prediction::Setting step = resolve_step(config, world, on_gpu);
  return {.step = step,
          .attention = attention_settings(config, on_gpu, step.type),
          .sparse = {.layers = config.sparse_layers(), .dense_updates = config.sparsity.dense_updates},
          .audit = {.every = config.sparsity.audit_every, .queries = config.sparsity.audit_queries},
          .parts_every = config.train.parts_every,
          .optimizer = {.adamw = config.train,
                        .learning_rate = config.learning_rate(),
                        .clip_norm = config.train.clip_norm},
          .saving = saving_of(config)};
}

}  // namespace annulus::training
