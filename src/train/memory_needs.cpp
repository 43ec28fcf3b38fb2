#include "train/memory_needs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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

/// Of memory.offload_optimizer.
std::string offload_problem(std::int64_t bytes, int ranks, std::int64_t available) {
  if (ranks * bytes <= available) return {};
  return fmt::format(
      "memory.offload_optimizer = true keeps {} of master weights and AdamW's moments in the host's memory "
      "for "
      "each rank, {} for the {} ranks of the machine {}, where {} are available: give the job more of the "
      "machine's memory, start fewer ranks on a machine, let more ranks share the state (parallel.zero = 1, "
      "2 "
      "or 3, docs/sharding.md), or set memory.offload_optimizer = false",
      bytes_text(bytes), bytes_text(ranks * bytes), ranks, comm::machine_name(), bytes_text(available));
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

/// Of memory that `ranks` share, each of which needs `bytes`.
std::string problem_of(MemoryKind kind, const MemoryBytes& bytes, int ranks, std::int64_t available) {
  if (ranks * total(bytes) <= available) return {};
  return fmt::format(
      "the model does not fit: its state and what its layers keep for the backward pass take {} of {} memory "
      "on each rank ({}){}, and {} are free on the machine {}: {}",
      bytes_text(total(bytes)), name_of(kind), bytes_text(bytes),
      ranks > 1 ? fmt::format(", {} for the {} ranks of the machine", bytes_text(ranks * total(bytes)), ranks)
                : "",
      bytes_text(available), comm::machine_name(), annulus::detail::memory_remedy(kind, bytes));
}

}  // namespace

void check_offload(const Config& config, const Hooks& hooks) {
  require(!config.memory.offload_optimizer || hooks.offload_on_cpu || device_of(config) == Device::gpu,
          "memory.offload_optimizer = true moves the optimizer's state out of a GPU's memory, but this run "
          "computes on the CPU (run.device = '{}'), whose memory holds it already: set "
          "memory.offload_optimizer = false, or compute on a GPU (docs/gpu.md)",
          config.run.device);
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
  // The rank that holds most of a sequence holds no fewer.
  const std::int64_t rows = config.train.sequences_per_pass * (config.data.sequence_length / context_ranks);
  state.device[static_cast<std::size_t>(MemoryCategory::activations)] =
      model::kept_activation_bytes(config.model, rows, dtype_of(config), config.memory.recompute_policy());
  const std::int64_t host = hooks.host_memory.value_or(available_host_memory());
  const int ranks = ranks_here(world);
  std::string problem;
  if (device_of(config) == Device::gpu) {
    // Ranks that share a GPU share its memory, but none of them knows of the others.
    const std::int64_t device = hooks.device_memory.value_or(free_device_memory());
    problem = problem_of(MemoryKind::device, state.device, 1, device);
    if (problem.empty()) problem = offload_problem(total(state.host), ranks, host);
  } else {
    problem = offload_problem(total(state.host), ranks, host);
    if (problem.empty()) problem = problem_of(MemoryKind::host, state.device, ranks, host);
  }
  if (problem.empty() && saving_of(config) == Saving::snapshot) {
    const std::int64_t taken =
        total(state.host) + (device_of(config) == Device::gpu ? 0 : total(state.device));
    problem = snapshot_problem(Snapshot::bytes(ceil_divide(map.size(), world.size())), taken, ranks, host);
  }
  comm::throw_together(world, problem);
}

}  // namespace annulus::train
