#include "training/run/planner/memory_planner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/division.hpp>

#include "attention/comm/mpi/device_memory.hpp"
#include "attention/sparsity/table_memory.hpp"
#include "base/units.hpp"
#include "training/data/loader.hpp"

namespace annulus::training {

std::int64_t prefetched_sequences(const ResolvedAttention& attention, const prediction::Setting& step) {
  const std::int64_t usual = data::LoaderOptions().prefetch;
  return attention.cuts_sequences() ? std::max(usual, step.passes * step.sequences) : usual;
}

std::int64_t sequence_bytes(const prediction::Setting& step, std::int64_t rows, std::int64_t prefetch) {
  return (prefetch + (step.passes + 1) * step.sequences) * rows *
         static_cast<std::int64_t>(2 * sizeof(std::int32_t));
}

namespace {

/// Documents and runs of rows of a pass' sequences under each mask, where the data give them.
std::int64_t document_bytes(const ResolvedAttention& attention, bool on_gpu) {
  if (!attention.follows_documents) return 0;
  return std::ssize(attention.masks) * attention.sequences *
         executor::document_memory(attention.problem, on_gpu);
}

}  // namespace

MemoryPlanner::MemoryPlanner(Config config, const Topology& world, ResolvedAttention attention, bool on_gpu)
    : config_(std::move(config)), world_(world), plans_(0, std::move(attention)), on_gpu_(on_gpu) {
  if (plans_.attention().documents != plans_.attention().typical_documents)
    typical_.emplace(0, plans_.attention().with_typical_documents());
  if (auto validation = resolve_validation(config_, plans_.attention()))
    validation_.emplace(0, *std::move(validation), SequencePlans::Passes::forward);
}

Config MemoryPlanner::with(const Config::Memory& memory) const {
  Config config = config_;
  config.memory = memory;
  return config;
}

MemoryPlanner::AttentionBytes MemoryPlanner::attention_bytes(
    const prediction::Setting& step, const MaskPlans& plans,
    const std::vector<std::vector<executor::Plans>>& largest, int rank) const {
  AttentionBytes bytes;  // layers exchange in one block, one after the other
  for (std::size_t mask = 0; mask < plans.size(); ++mask)
    bytes.exchange =
        std::max(bytes.exchange, executor::exchange_memory({&plans[mask], 1}, rank, largest[mask]));
  if (on_gpu_ && config_.parallel.transport == "mpi" && !comm::mpi_reads_device_memory())
    for (const std::vector<executor::Plans>& of_mask : largest)
      for (const executor::Plans& of_sequence : of_mask)
        bytes.staging = std::max(bytes.staging, executor::staging_memory(of_sequence, rank));
  if (step.sparsity && on_gpu_)
    bytes.tables = sparsity::table_memory(
        *step.sparsity, {&plans[static_cast<std::size_t>(plans_.attention().selected_mask)], 1}, rank,
        attention_settings(config_, on_gpu_, step.type).kernel);
  return bytes;
}

const MemoryPlanner::MaskPlans& MemoryPlanner::plans_for(std::int64_t early_positions) {
  const auto found = made_.find(early_positions);
  if (found != made_.end()) return found->second;
  plans_.recompute_before(early_positions);
  return made_.emplace(early_positions, plans_.of_first()).first->second;
}

prediction::RankShare MemoryPlanner::share(const prediction::Setting& step, int rank) {
  const std::int64_t early = step.activations.early_positions;
  const MaskPlans& plans = plans_for(early);
  const auto key = std::pair(early, rank);
  if (!training_bytes_.contains(key))
    training_bytes_[key] = attention_bytes(step, plans, plans_.largest(), rank);
  const AttentionBytes& bytes = training_bytes_[key];
  std::int64_t tables = bytes.tables, staging = bytes.staging;
  const PositionMap rows = plans_.problem().owned(rank);
  prediction::RankShare::Validation validation;
  if (validation_) {
    if (!validation_bytes_.contains(rank))
      validation_bytes_[rank] = attention_bytes(step, validation_->of_first(), validation_->largest(), rank);
    validation = {.rows = validation_->problem().owned(rank).count,
                  .exchange_bytes = validation_bytes_[rank].exchange,
                  .document_bytes = document_bytes(validation_->attention(), on_gpu_)};
    tables = std::max(tables, validation_bytes_[rank].tables);
    staging = std::max(staging, validation_bytes_[rank].staging);
  }
  return {.rows = {.sequences = step.sequences,
                   .tokens = rows.count,
                   .early = rows.rows_below(early),
                   .own_positions = plans_.attention().cuts_sequences()},
          .exchange_bytes = bytes.exchange,
          .staging_bytes = staging,
          .table_bytes = tables,
          .data_bytes = sequence_bytes(step, rows.count, prefetched_sequences(plans_.attention(), step)),
          .document_bytes = document_bytes(plans_.attention(), on_gpu_),
          .validation = validation};
}

prediction::UpdateMemory MemoryPlanner::memory(const Config::Memory& memory, int rank) {
  const prediction::Setting step = setting(memory);
  return prediction::update_memory(step, share(step, rank));
}

prediction::UpdateTime MemoryPlanner::time(const Config::Memory& memory, const simulator::Cluster& cluster) {
  const prediction::Setting all = setting(memory);
  const std::int64_t early = all.activations.early_positions;
  std::deque<prediction::LayerAttention>& of_masks = attention_[early];
  if (of_masks.empty()) {
    if (typical_) typical_->recompute_before(early);
    const MaskPlans of_typical = typical_ ? typical_->of_first() : MaskPlans();
    const ResolvedAttention& attention = plans_.attention();
    for (const executor::Plans& of_mask : typical_ ? of_typical : plans_for(early))
      of_masks.emplace_back(of_mask, attention.sequences / attention.problem.batch, cluster,
                            config_.attention.overlap,
                            simulator::Selected{plans_.attention().densities[of_masks.size()]});
  }
  std::vector<const prediction::LayerAttention*> attention;
  for (const int mask : plans_.attention().mask_of_layer)
    attention.push_back(&of_masks[static_cast<std::size_t>(mask)]);
  prediction::RankShare most;
  for (int rank = 0; rank < context(); ++rank)
    most.rows.tokens = std::max(most.rows.tokens, plans_.problem().owned(rank).count);
  most.rows.sequences = all.sequences;
  return prediction::update_time(all, most, attention, cluster);
}

bool MemoryPlanner::recomputes_by_position() const {
  return plans_.problem().layout.kind() != Layout::Kind::balanced && plans_.problem().mask.rule().right == 0;
}

std::vector<Config::Memory> MemoryPlanner::choices(const Config::Memory& memory) const {
  const Config::Memory defaults;
  constexpr std::int64_t chunk = 4096;
  const bool by_position = recomputes_by_position();
  const std::int64_t rows =
      ceil_divide(config_.data.sequence_length, std::int64_t{context()}) * config_.train.sequences_per_pass;
  std::vector<double> offloads{memory.offload_activations}, fractions{0.75, 0.5, 0.25};
  std::vector<std::int64_t> chunks{memory.chunk_rows};
  std::vector<bool> optimizers{memory.offload_optimizer};
  if (memory.chunk_rows == 0 && rows > chunk) chunks = {0, chunk};
  if (on_gpu_ && memory.offload_activations == 0) offloads = {0, 0.5, 1};
  if (on_gpu_ && !memory.offload_optimizer && !config_.uses_muon()) optimizers = {false, true};
  if (memory.store_fraction != defaults.store_fraction) fractions = {memory.store_fraction};

  std::vector<Config::Memory> all;
  for (const bool optimizer : optimizers)
    for (const double offload : offloads)
      for (const std::int64_t rows_at_once : chunks) {
        Config::Memory next = memory;
        next.store_fraction = defaults.store_fraction;
        next.offload_activations = offload;
        next.chunk_rows = rows_at_once;
        next.offload_optimizer = optimizer;
        next.recompute = {"none"};
        if (memory.layers_without_recompute == 0) all.push_back(next);
        next.recompute = {"selective"};
        all.push_back(next);
        for (const double fraction : by_position ? fractions : std::vector<double>()) {
          Config::Memory part = next;
          part.recompute = {"sequence-selective"};
          part.store_fraction = fraction;
          all.push_back(part);
        }
        next.recompute = {"full"};
        all.push_back(next);
      }
  return all;
}

std::vector<Config::Memory> MemoryPlanner::with_less_recompute(const std::vector<Config::Memory>& choices,
                                                               const std::vector<std::int64_t>& missing,
                                                               const Missing& missing_of) const {
  // Memory grows with the number of layers: it is halved between one that fits and one that does not.
  std::vector<Config::Memory> found;
  std::vector<int> over;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Config::Memory& choice = choices[i];
    if (missing[i] > 0 || choice.layers_without_recompute > 0) continue;
    Config::Memory whole = choice;
    whole.recompute = {"none"};
    whole.store_fraction = Config::Memory().store_fraction;
    const auto of_whole = std::ranges::find(choices, whole);
    if (of_whole == choices.end() || missing[static_cast<std::size_t>(of_whole - choices.begin())] <= 0)
      continue;
    found.push_back(choice);
    over.push_back(config_.model.layers);
  }
  for (bool narrower = !found.empty(); narrower;) {
    std::vector<Config::Memory> tried = found;
    for (std::size_t i = 0; i < found.size(); ++i)
      tried[i].layers_without_recompute = (found[i].layers_without_recompute + over[i]) / 2;
    const std::vector<std::int64_t> lacks = missing_of(tried);
    narrower = false;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (lacks[i] <= 0)
        found[i] = tried[i];
      else
        over[i] = tried[i].layers_without_recompute;
      narrower |= over[i] - found[i].layers_without_recompute > 1;
    }
  }
  std::erase_if(found, [](const Config::Memory& memory) { return memory.layers_without_recompute == 0; });
  return found;
}

MemoryChoices MemoryPlanner::choose(const Config::Memory& open, const simulator::Cluster& cluster,
                                    const Missing& missing_of) {
  std::vector<Config::Memory> tried = choices(open);
  std::vector<std::int64_t> missing = missing_of(tried);
  const std::vector<Config::Memory> more = with_less_recompute(tried, missing, missing_of);
  tried.insert(tried.end(), more.begin(), more.end());
  missing.resize(tried.size(), 0);  // they fit
  MemoryChoices made;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    made.all.push_back({tried[i], time(tried[i], cluster), missing[i]});
    constexpr double nearly = 0.999;
    const MemoryChoices::Choice &best = made.all[made.taken], &next = made.all[i];
    const bool fits = next.missing <= 0;
    if (best.missing > 0 ? fits || next.missing < best.missing
                         : fits && next.time.total() < nearly * best.time.total())
      made.taken = i;
  }
  return made;
}

std::string MemoryChoices::reason() const {
  const Choice *lacking = nullptr, *next = nullptr;
  for (const Choice& other : all) {
    if (&other == &chosen()) continue;
    const bool faster = other.time.total() < chosen().time.total();
    if (other.missing > 0 && faster && (lacking == nullptr || other.missing < lacking->missing))
      lacking = &other;
    if (other.missing <= 0 && (next == nullptr || other.time.total() < next->time.total())) next = &other;
  }
  std::string text = fmt::format("{}{}: predicted {} an optimizer step",
                                 fits() ? "" : "nothing fits; least is missing with ",
                                 outline(chosen().memory), duration_text(chosen().time.total()));
  if (lacking != nullptr)
    text +=
        fmt::format("; of what would be faster {} ({}) comes nearest and lacks {}", outline(lacking->memory),
                    duration_text(lacking->time.total()), bytes_text(lacking->missing));
  if (next != nullptr)
    text += fmt::format("; next would be {} ({})", outline(next->memory), duration_text(next->time.total()));
  return text;
}

std::string outline(const Config::Memory& memory) {
  std::string text = fmt::format("{}", fmt::join(memory.recompute, "+"));
  if (text.find("sequence") != std::string::npos) text += fmt::format(" {:g}", memory.store_fraction);
  if (memory.layers_without_recompute > 0)
    text += memory.layers_without_recompute == 1
                ? " but for the last layer"
                : fmt::format(" but for the last {} layers", memory.layers_without_recompute);
  if (memory.chunk_rows > 0) text += fmt::format(", chunks of {}", memory.chunk_rows);
  if (memory.offload_activations > 0)
    text += fmt::format(", {:g} % of the layers offloaded", 100 * memory.offload_activations);
  if (memory.offload_optimizer) text += ", optimizer offloaded";
  return text;
}

}  // namespace annulus::training
