#include "train/memory_needs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/fingerprint.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/core/device_pool.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/model/activation_memory.hpp>
#include <annulus/sequence/layout.hpp>
#include <annulus/simulate/choose.hpp>
#include <annulus/train/device.hpp>

#include "train/saver.hpp"

namespace annulus::train {

namespace {

using annulus::detail::bytes_text;

DType dtype_of(const Config& config) {
  return config.train.dtype == "bf16" ? DType::bf16 : DType::f32;
}

/// Ranks of `world` on the machine of this one.
int ranks_here(comm::Communicator& world) {
  Fingerprint name;
  name.add(comm::machine_name());
  const std::uint64_t mine = name.value();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(Queue(HostExec()), &mine, all.data(), sizeof mine);
  return static_cast<int>(std::ranges::count(all, mine));
}

/// What the device has, and this process' pool.
std::int64_t free_device_memory() {
  const DeviceMemory memory = device_memory();
  return memory.free +
         std::max<std::int64_t>(0, memory.pooled - memory_use(MemoryKind::device).total_current);
}

std::int64_t total(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// What a rank computes in a pass. Of the ranks it is the one that keeps most; where the layout is yet to be
/// chosen, one that holds its share of the early positions.
model::PassRows rows_of_a_rank(const Config& config, int context_ranks, std::int64_t early_positions) {
  const std::int64_t length = config.data.sequence_length;
  model::PassRows rows{.sequences = config.train.sequences_per_pass,
                       .tokens = length / context_ranks,
                       .early = early_positions / context_ranks};
  if (early_positions == 0 || config.attention.layout == simulate::automatic) return rows;
  const Layout layout = Layout::parse(config.attention.layout, "attention.layout");
  rows.early = rows.tokens;
  for (int rank = 0; rank < context_ranks; ++rank) {
    const PositionMap shard = layout.shard(length, context_ranks, rank);
    rows.early = std::min(rows.early, shard.rows_below(early_positions));
  }
  return rows;
}

model::ActivationMemory activations_of(const Config& config, int context_ranks,
                                       const model::ActivationOptions& options) {
  return model::activation_memory(config.model,
                                  rows_of_a_rank(config, context_ranks, options.early_positions),
                                  dtype_of(config), options);
}

/// What of memory.* makes room for the activations, cheapest first.
struct Remedy {
  const char* text;
  model::Recompute recompute;
  double offload;
  std::int64_t chunk_rows;
};
constexpr std::int64_t remedy_chunk = 4096;
constexpr Remedy remedies[] = {
    {"memory.recompute = 'selective'", model::Recompute::selective, 0, 0},
    {"memory.recompute = 'selective' and memory.chunk_rows = 4096", model::Recompute::selective, 0,
     remedy_chunk},
    {"memory.recompute = 'selective', memory.offload_activations = 1 and memory.chunk_rows = 4096",
     model::Recompute::selective, 1, remedy_chunk},
    {"memory.recompute = 'full' and memory.chunk_rows = 4096", model::Recompute::full, 0, remedy_chunk},
    {"memory.recompute = 'full', memory.offload_activations = 1 and memory.chunk_rows = 4096",
     model::Recompute::full, 1, remedy_chunk}};

/// Names the first of them with which a rank's activations fit into `bytes`; empty where none does.
std::string fitting_remedy(const Config& config, int context_ranks, bool on_gpu, std::int64_t bytes) {
  for (const Remedy& remedy : remedies) {
    if (remedy.offload > 0 && !on_gpu) continue;
    const model::ActivationMemory memory = activations_of(
        config, context_ranks,
        {.recompute = {remedy.recompute}, .offload = remedy.offload, .chunk_rows = remedy.chunk_rows});
    if (memory.device() <= bytes)
      return fmt::format("{} would take {} for activations, which fit; or ", remedy.text,
                         bytes_text(memory.device()));
  }
  return {};
}

/// Of what is offloaded: the optimizer's state and activations.
std::string offload_problem(const MemoryBytes& host, int ranks, std::int64_t available) {
  const std::int64_t bytes = total(host);
  if (ranks * bytes <= available) return {};
  const std::int64_t activations = host[static_cast<std::size_t>(MemoryCategory::activations)];
  const bool of_optimizer = activations < bytes - activations;
  return fmt::format(
      "{} keeps {} for each rank in the host's memory ({}), {} for the {} ranks of the machine {}, where {} "
      "are available: give the job more of the machine's memory, start fewer ranks on a machine, {}",
      of_optimizer ? "memory.offload_optimizer = true" : "memory.offload_activations", bytes_text(bytes),
      bytes_text(host), bytes_text(ranks * bytes), ranks, comm::machine_name(), bytes_text(available),
      of_optimizer ? "let more ranks share the state (parallel.zero = 1, 2 or 3, docs/sharding.md), or set "
                     "memory.offload_optimizer = false"
                   : "or offload fewer layers (a smaller memory.offload_activations)");
}

/// Of the copies from which checkpoints are written, beside what else lies in the host's memory.
std::string snapshot_problem(std::int64_t bytes, std::int64_t taken, int ranks, std::int64_t available) {
  if (ranks * (bytes + taken) <= available) return {};
  return fmt::format(
      "while training goes on, checkpoints are written from a copy of each rank's share in the host's "
      "memory, {} on each rank, {} for the {} ranks of the machine {}{}, where {} are available: give the "
      "job more of the machine's memory, start fewer ranks on a machine, or set checkpoint.every = 0, which "
      "saves at the end and on signals alone",
      bytes_text(bytes), bytes_text(ranks * bytes), ranks, comm::machine_name(),
      taken > 0 ? fmt::format(" beside {} of the model's state", bytes_text(ranks * taken)) : "",
      bytes_text(available));
}

/// Of memory that `ranks` share, each of which needs `bytes`; `remedy` of them is what makes room for
/// activations.
std::string problem_of(MemoryKind kind, const MemoryBytes& bytes, int ranks, std::int64_t available,
                       const std::function<std::string(std::int64_t bytes)>& remedy) {
  if (ranks * total(bytes) <= available) return {};
  const std::int64_t activations = bytes[static_cast<std::size_t>(MemoryCategory::activations)];
  return fmt::format(
      "the model does not fit: its state and its activations take {} of {} memory on each rank ({}){}, and "
      "{} "
      "are free on the machine {}: {}{}",
      bytes_text(total(bytes)), name_of(kind), bytes_text(bytes),
      ranks > 1 ? fmt::format(", {} for the {} ranks of the machine", bytes_text(ranks * total(bytes)), ranks)
                : "",
      bytes_text(available), comm::machine_name(), remedy(available / ranks - (total(bytes) - activations)),
      annulus::detail::memory_remedy(kind, bytes));
}

}  // namespace

void check_offload(const Config& config, const Hooks& hooks) {
  if (hooks.offload_on_cpu || device_of(config) == Device::gpu) return;
  const auto refuse = [&](bool offloads, const char* key, const char* what, const char* nothing) {
    require(!offloads,
            "{} moves {} out of a GPU's memory, but this run computes on the CPU (run.device = '{}'), whose "
            "memory holds it already: set {}, or compute on a GPU (docs/gpu.md)",
            key, what, config.run.device, nothing);
  };
  refuse(config.memory.offload_optimizer, "memory.offload_optimizer = true", "the optimizer's state",
         "memory.offload_optimizer = false");
  refuse(config.memory.offload_activations > 0, "memory.offload_activations", "what layers keep",
         "memory.offload_activations = 0");
}

sharding::StateLayout state_layout(const comm::Communicator& world, const Config& config) {
  return {.stage = config.parallel.zero,
          .ranks = config.parallel.shard > 0 ? config.parallel.shard : world.size(),
          .weights = dtype_of(config),
          .offload = config.memory.offload_optimizer};
}

void require_memory(comm::Communicator& world, int context_ranks, const Config& config, const Hooks& hooks) {
  const model::ParameterMap map(config.model);
  sharding::StateMemory state = sharding::state_memory(map, state_layout(world, config));
  const bool on_gpu = device_of(config) == Device::gpu;
  const model::ActivationMemory activations = activations_of(config, context_ranks, config.activations());
  const auto slot = static_cast<std::size_t>(MemoryCategory::activations);
  state.device[slot] = activations.device();
  state.host[slot] = activations.host;
  const auto remedy = [&](std::int64_t bytes) {
    return fitting_remedy(config, context_ranks, on_gpu, bytes);
  };
  const std::int64_t host = hooks.host_memory.value_or(available_host_memory());
  const int ranks = ranks_here(world);
  std::string problem;
  if (on_gpu) {
    // Ranks that share a GPU share its memory, but none of them knows of the others.
    const std::int64_t device = hooks.device_memory.value_or(free_device_memory());
    problem = problem_of(MemoryKind::device, state.device, 1, device, remedy);
    if (problem.empty()) problem = offload_problem(state.host, ranks, host);
  } else {
    problem = offload_problem(state.host, ranks, host);
    if (problem.empty()) problem = problem_of(MemoryKind::host, state.device, ranks, host, remedy);
  }
  if (problem.empty() && saving_of(config) == Saving::snapshot) {
    const std::int64_t taken = total(state.host) + (on_gpu ? 0 : total(state.device));
    problem = snapshot_problem(Snapshot::bytes(ceil_divide(map.size(), world.size())), taken, ranks, host);
  }
  comm::throw_together(world, problem);
}

}  // namespace annulus::train
