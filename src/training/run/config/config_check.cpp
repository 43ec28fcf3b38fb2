#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <cmath>

#include <annulus/attention/comm/sums.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>
#include <annulus/training/run/config.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "base/parse_number.hpp"

namespace annulus::training {

namespace {

// "1, 2, 3 or 6".
std::string divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  const std::int64_t last = divisors.back();
  divisors.pop_back();
  return divisors.empty() ? fmt::format("{}", last)
                          : fmt::format("{} or {}", fmt::join(divisors, ", "), last);
}

// Behind a value that the user may never have written.
template <class T>
std::string_view if_default(T value, T by_default) {
  return value == by_default ? " (its default)" : "";
}

// Tokens and bytes of an optimizer step are counted in 64 bits, on as many ranks as a run may have.
void check_counts(const Config& config) {
  constexpr double most_tokens = 0x1p44, most_bytes = 0x1p62;
  const model::Config& model = config.model;
  const auto length = static_cast<double>(std::max(config.data.sequence_length, config.validation_length()));
  const double tokens = static_cast<double>(config.train.micro_batches) * length;
  require(tokens <= most_tokens,
          "train.micro_batches = {} sequences of data.sequence_length = {} tokens make {:.1e} tokens an "
          "optimizer step, of which at most {:.1e} are counted: take fewer",
          config.train.micro_batches, config.data.sequence_length, tokens, most_tokens);
  // More than any layer or the LM head keeps of a row.
  const double of_layer = 8.0 * model.hidden + 4.0 * static_cast<double>(model.qkv_width()) + 6.0 * model.ffn,
               of_row = 4 * (of_layer * model.layers + static_cast<double>(model.vocabulary)),
               bytes = static_cast<double>(config.train.sequences_per_pass) * length * of_row;
  require(bytes < most_bytes,
          "train.sequences_per_pass = {} sequences of data.sequence_length = {} tokens make {:.1e} bytes of "
          "activations in this model, more than are counted ({:.1e}): take fewer",
          config.train.sequences_per_pass, config.data.sequence_length, bytes, most_bytes);
}

void check_sparsity(const Config& config) {
  config.sparse_layers();
  if (config.attention.sparsity.empty()) {
    const Config::Sparsity& of = config.sparsity;
    require(of.dense_updates == 0 && of.dense_layers.empty() && !of.keep_columns,
            "sparsity.dense_updates, sparsity.dense_layers and sparsity.keep_columns have no effect without "
            "attention.sparsity: give a selection there, or leave them out");
    return;
  }
  std::vector<model::LayerKind> kinds = config.model.kinds();
  std::erase_if(kinds,
                [](const model::LayerKind& kind) { return kind.has_window(); });  // which take their windows
  require(!kinds.empty(),
          "attention.sparsity selects in causal layers, but model.pattern = '{}' gives all layers windows, "
          "which have no far keys to select: leave attention.sparsity out",
          fmt::join(config.model.pattern, ", "));
  require(std::ranges::none_of(kinds, [&](const auto& kind) { return config.model.score_cap(kind) > 0; }),
          "attention.sparsity selects by scores without a soft cap, which causal layers have here: leave it "
          "out, or model.soft_cap (and soft_cap= in model.pattern)");
  require(std::ranges::none_of(kinds, &model::LayerKind::sinks),
          "attention.sparsity selects by scores without sinks, which causal layers have here: leave it out, "
          "or sinks in model.pattern");
  const annulus::detail::MaskTerms mask =
      annulus::detail::parse_mask_terms(config.attention.mask, "attention.mask");
  require(!(mask.full || mask.window || mask.dilated || mask.blocks),
          "attention.sparsity selects from attention.mask = 'causal' or 'documents', not from '{}', whose "
          "windows and blocks have no far keys to select: set one of these two",
          config.attention.mask);
  const auto options = sparsity::PatternOptions::parse(config.attention.sparsity, "attention.sparsity");
  const bool packed = mask.documents.has_value();
  options.check(config.data.sequence_length, "attention.sparsity", packed);
  if (const std::int64_t tokens = config.validation_length(); tokens > 0)
    options.check(tokens, "attention.sparsity (for data.validation)", packed);
  require(
      !config.sparsity.keep_columns ||
          sparsity::selection_form(options, config.data.sequence_length).columns > 0,
      "sparsity.keep_columns keeps verticals, which attention.sparsity = '{}' does not select: leave it out",
      config.attention.sparsity);
}

void check_lengths(const Config& config) {
  const Config::Train& train = config.train;
  std::vector<std::string> given;
  if (train.steps > 0) given.push_back(fmt::format("train.steps = {}", train.steps));
  if (train.tokens > 0) given.push_back(fmt::format("train.tokens = {}", train.tokens));
  if (train.epochs > 0) given.push_back(fmt::format("train.epochs = {}", train.epochs));
  require(!given.empty(),
          "nothing says how long the run is: give one of train.steps, train.tokens and train.epochs");
  require(given.size() == 1, "{} each say how long the run is: leave all but one out, or set them to 0",
          fmt::join(given, " and "));
  require(train.epochs == 0 || config.data.sets.size() <= 1,
          "train.epochs = {} has no meaning with several data.sets, which come round at a pace of their own: "
          "give train.tokens",
          train.epochs);
  require((train.ramp_start > 0) == (train.ramp_sequences > 0) &&
              (train.ramp_increment > 0) == (train.ramp_sequences > 0),
          "train.ramp_start = {}, train.ramp_increment = {} and train.ramp_sequences = {} go together: give "
          "all three, or leave them out",
          train.ramp_start, train.ramp_increment, train.ramp_sequences);
}

void check_learning_rate(const Config& config) {
  const Config::Train& train = config.train;
  const auto curve = optimizer::LearningRateSchedule::parse_curve(train.schedule, "train.schedule =");
  require(train.decay_steps == 0 || curve == optimizer::LearningRateSchedule::Curve::wsd,
          "train.decay_steps = {} is for train.schedule = 'wsd', not for '{}': "
          "leave it out, or take that schedule",
          train.decay_steps, train.schedule);
  if (config.schedule_steps() > 0) {
    const std::string length =
        train.schedule_steps > 0 ? fmt::format("train.schedule_steps = {}", train.schedule_steps)
        : train.steps > 0        ? fmt::format("train.steps = {}", train.steps)
                                 : fmt::format("the {} optimizer steps of the run", config.steps());
    require(train.warmup_steps <= config.schedule_steps(),
            "train.warmup_steps = {}{} exceeds {}: warm up for fewer steps, or raise train.schedule_steps",
            train.warmup_steps, if_default(train.warmup_steps, Config::Train().warmup_steps), length);
    require(train.decay_steps <= config.schedule_steps() - train.warmup_steps,
            "train.decay_steps = {} and train.warmup_steps = {} exceed {}: "
            "give fewer, or raise train.schedule_steps",
            train.decay_steps, train.warmup_steps, length);
  }
  require(train.min_lr <= train.lr,
          "train.min_lr = {}{} exceeds train.lr = {}{}, but the learning rate goes down: lower train.min_lr",
          train.min_lr, if_default(train.min_lr, Config::Train().min_lr), train.lr,
          if_default(train.lr, Config::Train().lr));
}

void check_optimizer(const Config& config) {
  const Config::Train& train = config.train;
  require(train.optimizer == "adamw" || train.optimizer == "muon",
          "train.optimizer = '{}' is unknown; known are adamw and muon", train.optimizer);
  require(train.momentum >= 0 && train.momentum < 1,
          "train.momentum = {}: give a number from 0 up to, but not 1", train.momentum);
  require(config.uses_muon() || train.momentum == Config::Train().momentum,
          "train.momentum = {} is for train.optimizer = 'muon', not for '{}': "
          "leave it out, or take that optimizer",
          train.momentum, train.optimizer);
  require(!config.uses_muon() || !config.memory.offload_optimizer,
          "memory.offload_optimizer = true does not go with train.optimizer = 'muon', whose products of "
          "whole matrices would run on the host: leave it out and let ranks share the state (parallel.zero = "
          "1, 2 or 3), or take train.optimizer = 'adamw'");
  config.decaying();
  train.validate("train.");
}

void check_sets(const Config::Data& data) {
  require(data.shards.empty() || data.sets.empty(),
          "data.shards and data.sets both name what to train on: give one of them (--set 'data.sets=[]' or "
          "--set 'data.shards=[]' takes the other away)");
  constexpr double least = 1e-6, most = 1e6;
  for (const Config::DataSet& set : data.sets) {
    require(!set.name.empty(), "data.sets has a set without a name: name each");
    require(std::ranges::count(data.sets, set.name, &Config::DataSet::name) == 1,
            "data.sets has two sets of the name '{}': name their shards in one, or give them other names",
            set.name);
    require(!set.shards.empty(), "data.sets: set '{}' has no shards: name files or folders of them",
            set.name);
    const double millionths = set.weight / least;
    require(set.weight >= least && set.weight <= most && std::abs(millionths - std::round(millionths)) < 1e-3,
            "data.sets: the weight of set '{}' is {}: give a number from {} to {} with at most six decimals; "
            "leave sets out that are not to be read",
            set.name, set.weight, "0.000001", "1000000");
  }
}

// What does not go with rows that are dealt out by documents.
void check_balanced(const Config& config) {
  if (config.attention.layout != Layout(Layout::Kind::balanced).to_string()) return;
  require(config.attention.sparsity.empty(),
          "attention.layout = 'balanced' goes with attention.mask alone: attention.sparsity = '{}' selects "
          "blocks of the sequence, which its runs of rows would cut; use striped or zigzag",
          config.attention.sparsity);
  require(std::ranges::find(config.memory.recompute, "sequence-selective") == config.memory.recompute.end(),
          "attention.layout = 'balanced' does not go with memory.recompute = 'sequence-selective', under "
          "which ranks would have other numbers of early rows in each batch: use selective or full, or "
          "attention.layout = 'striped'");
}

}  // namespace

void Config::check() const {
  model::Config shape = model;
  if (shape.vocabulary == 0) shape.vocabulary = 1;  // the data will say
  shape.check();
  require(
      !run.folder.empty(),
      "run.folder is empty: name a folder for configuration, log and checkpoints of the run, like runs/mine");
  require(run.device == "auto" || run.device == "cpu" || run.device == "gpu",
          "run.device = '{}' is unknown; known are auto, cpu and gpu", run.device);
  require(parallel.shard == 0 || parallel.zero > 0,
          "parallel.shard = {} is of use where something is sharded: set parallel.zero to 1, 2 or 3, or "
          "leave it out",
          parallel.shard);
  require(parallel.shard != 1,
          "parallel.shard = 1 would shard over one rank: give 2 or more, 0 for all ranks, or set "
          "parallel.zero = 0");
  comm::parse_sums(parallel.sums, "parallel.sums =");
  require(train.dtype == "f32" || train.dtype == "bf16",
          "train.dtype = '{}': weights and activations are f32 or bf16", train.dtype);
  train.passes();
  if (!chooses_recompute()) {
    activations();
  } else {
    Config open = *this;  // the other keys of memory.*
    open.memory.recompute = {"sequence-selective"};
    open.activations();
  }
  require(train.clip_norm > 0,
          "train.clip_norm = {}: give a positive number (a very large one does not clip)", train.clip_norm);
  check_lengths(*this);
  check_learning_rate(*this);
  check_optimizer(*this);
  check_counts(*this);
  check_sparsity(*this);
  check_sets(data);
  require(data.packing == "stream" || data.packing == "best-fit",
          "data.packing = '{}' is unknown; known are stream and best-fit", data.packing);
  validation_shards();
  require(!data.validation.empty() || data.validation_length == 0,
          "data.validation_length = {} has no effect without data.validation: name token shards there, or "
          "leave it out",
          data.validation_length);
  const bool any_schedule = attention.schedule == simulator::automatic,
             any_layout = attention.layout == simulator::automatic;
  simulator::check_schedule_or_auto(attention.schedule, "attention.schedule");
  simulator::check_layout_or_auto(attention.layout, "attention.layout");
  const annulus::detail::MaskTerms mask = annulus::detail::parse_mask_terms(attention.mask, "attention.mask");
  require(model.pattern.empty() || !(mask.full || mask.window || mask.dilated || mask.blocks),
          "attention.mask = '{}' does not go with model.pattern, which says the masks of layers: set "
          "attention.mask to causal or documents, and write windows in model.pattern",
          attention.mask);
  check_balanced(*this);
  require(any_schedule || any_layout || chooses_recompute() || attention.cluster.empty(),
          "attention.cluster = '{}' has no effect without auto: set attention.schedule, attention.layout or "
          "memory.recompute to auto, or leave it out",
          attention.cluster);
}

std::vector<bool> Config::sparse_layers() const {
  std::vector<bool> sparse;
  for (const model::LayerKind& kind : model.kinds()) sparse.push_back(!kind.has_window());
  const auto number = [&](std::string_view text, const std::string& entry) {
    const auto value = parse_number<std::size_t>(text);
    require(
        value && *value < sparse.size(),
        "sparsity.dense_layers has '{}': give layers from 0 to {}, or ranges of them, as in '0' or '1-{}'",
        entry, sparse.size() - 1, sparse.size() - 1);
    return *value;
  };
  for (const std::string& entry : sparsity.dense_layers) {
    const std::size_t dash = entry.find('-');
    const std::size_t first = number(std::string_view(entry).substr(0, dash), entry);
    const std::size_t last =
        dash == std::string::npos ? first : number(std::string_view(entry).substr(dash + 1), entry);
    require(first <= last, "sparsity.dense_layers has '{}': a range begins at its lower layer, as '{}-{}'",
            entry, last, first);
    for (std::size_t layer = first; layer <= last; ++layer) sparse[layer] = false;
  }
  return sparse;
}

std::vector<double> Config::predicted_densities(std::span<const std::int64_t> document_starts) const {
  std::vector<double> densities(static_cast<std::size_t>(model.layers), 1.0);
  if (attention.sparsity.empty()) return densities;
  const auto options = sparsity::PatternOptions::parse(attention.sparsity, "attention.sparsity");
  const double selected = sparsity::predicted_density(options, data.sequence_length, document_starts);
  const std::vector<bool> sparse = sparse_layers();
  for (std::size_t layer = 0; layer < densities.size(); ++layer)
    if (sparse[layer]) densities[layer] = selected;
  return densities;
}

std::int64_t Config::Train::passes() const {
  require(micro_batches % sequences_per_pass == 0,
          "train.sequences_per_pass = {} does not divide train.micro_batches = {}: set it to {}, or set "
          "train.micro_batches to a multiple of {}",
          sequences_per_pass, micro_batches, divisors_of(micro_batches), sequences_per_pass);
  return micro_batches / sequences_per_pass;
}

std::vector<std::string> Config::training_shards() const {
  std::vector<std::string> all = data.shards;
  for (const DataSet& set : data.sets) all.insert(all.end(), set.shards.begin(), set.shards.end());
  return all;
}

std::vector<Config::ValidationShards> Config::validation_shards() const {
  std::vector<ValidationShards> all;
  for (const std::string& entry : data.validation) {
    const std::size_t equals = entry.find('=');
    const bool named = equals < entry.find('/');
    all.push_back({named ? entry.substr(0, equals) : "validation", named ? entry.substr(equals + 1) : entry});
    require(!all.back().name.empty() && !all.back().path.empty(),
            "data.validation has '{}': give PATH, or NAME=PATH", entry);
  }
  return all;
}

std::int64_t Config::validation_length() const {
  if (data.validation.empty()) return 0;
  return data.validation_length > 0 ? data.validation_length : data.sequence_length;
}

std::chrono::milliseconds Config::file_stall_timeout() const {
  if (run.stall_timeout == 0) return stall_timeout();
  return std::max<std::chrono::milliseconds>(stall_timeout(), std::chrono::hours(1));
}

optimizer::LearningRateSchedule Config::learning_rate() const {
  return {.lr = train.lr,
          .min_lr = train.min_lr,
          .warmup_steps = train.warmup_steps,
          .schedule_steps = std::max<std::int64_t>(1, schedule_steps()),
          .curve = optimizer::LearningRateSchedule::parse_curve(train.schedule, "train.schedule ="),
          .decay_steps = train.decay_steps};
}

std::vector<model::TensorKind> Config::decaying() const {
  std::vector<model::TensorKind> kinds;
  for (const std::string& name : train.decay) kinds.push_back(model::parse_tensor_kind(name, "train.decay:"));
  return kinds;
}

bool Config::chooses_recompute() const {
  return memory.recompute.size() == 1 && memory.recompute.front() == recompute_auto;
}

model::ActivationOptions Config::activations() const {
  model::ActivationOptions options{.recompute = {},
                                   .offload = memory.offload_activations,
                                   .chunk_rows = memory.chunk_rows,
                                   .lm_head_rows = memory.lm_head_rows};
  try {
    for (const std::string& name : memory.recompute)
      options.recompute.push_back(model::parse_recompute(name, "memory.recompute"));
  } catch (const Error& error) {
    fail("{}, or {} alone, which chooses for all layers", error.what(), recompute_auto);
  }
  require(options.recompute.size() == 1 || options.recompute.size() == static_cast<std::size_t>(model.layers),
          "memory.recompute lists {} policies, but the model has {} layers (model.layers): give one policy "
          "for all layers, or one for each",
          options.recompute.size(), model.layers);
  const bool by_position =
      std::ranges::find(options.recompute, model::Recompute::sequence_selective) != options.recompute.end();
  if (memory.layers_without_recompute > 0) {
    const int whole = memory.layers_without_recompute;
    require(options.recompute.size() == 1,
            "memory.layers_without_recompute = {} goes with one policy for all layers, but memory.recompute "
            "lists one for each: end the list with 'none' instead",
            whole);
    require(options.recompute.front() != model::Recompute::none,
            "memory.layers_without_recompute = {} has no effect under memory.recompute = 'none', with which "
            "no layer computes anything again: leave it out, or take another policy",
            whole);
    require(whole < model.layers,
            "memory.layers_without_recompute = {} leaves none of the {} layers (model.layers) to "
            "memory.recompute: give fewer, or set memory.recompute = 'none'",
            whole, model.layers);
    options.recompute.resize(static_cast<std::size_t>(model.layers), options.recompute.front());
    std::fill(options.recompute.end() - whole, options.recompute.end(), model::Recompute::none);
  }
  if (by_position) {
    options.early_positions = data.sequence_length -
                              std::llround(memory.store_fraction * static_cast<double>(data.sequence_length));
  } else {
    require(memory.store_fraction == Memory().store_fraction,
            "memory.store_fraction = {} is for memory.recompute = 'sequence-selective', which no layer has: "
            "leave it out, or take that policy",
            memory.store_fraction);
  }
  return options;
}

}  // namespace annulus::training
