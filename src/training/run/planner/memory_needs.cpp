#include "training/run/planner/memory_needs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/training/run/trainer.hpp>

#include "attention/comm/agreement.hpp"
#include "base/fingerprint.hpp"
#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/units.hpp"
#include "training/run/config/config_table.hpp"
#include "training/run/planner/memory_planner.hpp"
#include "training/run/planner/plan_memory.hpp"
#include "training/run/planner/rehearsal.hpp"

namespace annulus::training {

namespace {

/// Ranks of `world` on the machine of this one.
int ranks_here(comm::Communicator& world) {
  Fingerprint name;
  name.add(comm::machine_name());
  const std::uint64_t mine = name.value();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(Queue(HostExec()), &mine, all.data(), sizeof mine);
  return static_cast<int>(std::ranges::count(all, mine));
}

/// "memory.recompute = [ 'selective' ], memory.chunk_rows = 4096": the keys that differ from `otherwise`.
std::string differences(const Config::Memory& memory, const Config::Memory& otherwise) {
  Config a, b;
  a.memory = memory;
  b.memory = otherwise;
  std::vector<std::string> keys;
  for (const Key& key : config_table())
    if (const std::string value = value_text(key, a); value != value_text(key, b))
      keys.push_back(fmt::format("{} = {}", key.name, value));
  return fmt::format("{}", fmt::join(keys, ", "));
}

/// Says that memory which `ranks` share is too small, each of which needs `bytes`.
std::string problem_of(MemoryKind kind, const MemoryBytes& bytes, int ranks, const Available& available,
                       const std::string& remedy) {
  const bool device = kind == MemoryKind::device;
  return fmt::format(
      "the run does not fit: an optimizer step takes {} of {} memory on each rank ({}){}, and {} are free on "
      "the machine {}{}: {}",
      bytes_text(total_bytes(bytes)), name_of(kind), bytes_text(bytes),
      ranks > 1
          ? fmt::format(", {} for the {} ranks of the machine", bytes_text(ranks * total_bytes(bytes)), ranks)
          : "",
      bytes_text(device ? available.device() : available.host), comm::machine_name(),
      device && available.gpu > available.device()
          ? fmt::format(
                " (of the {} of a GPU, CUDA, NCCL and cuBLAS take {}{})", bytes_text(available.gpu),
                bytes_text(available.libraries),
                available.spare > 0 ? fmt::format(", and {} stay free", bytes_text(available.spare)) : "")
          : "",
      remedy);
}

/// What this rank's part of the run needs, against what is there.
class Needs {
 public:
  Needs(MemoryPlanner& planner, int rank, const Available& available)
      : planner_(planner), rank_(rank), available_(available) {}

  /// Bytes that are missing; 0 or less where everything fits.
  std::int64_t missing(const Config::Memory& memory) {
    const prediction::UpdateMemory needed = planner_.memory(memory, rank_);
    std::int64_t missing = available_.ranks * needed.host.total - available_.host;
    if (planner_.on_gpu()) missing = std::max(missing, needed.device.total - available_.device());
    return missing;
  }

  /// What does not fit; empty where everything does.
  std::string problem(const Config::Memory& memory) {
    const prediction::UpdateMemory needed = planner_.memory(memory, rank_);
    if (planner_.on_gpu() && needed.device.total > available_.device())
      return problem_of(MemoryKind::device, needed.device.at_once, 1, available_,
                        remedy(memory, MemoryKind::device, needed.device.at_once));
    const auto problem = [&](const MemoryBytes& host, const std::string& text) {
      return problem_of(MemoryKind::host, host, available_.ranks, available_, text);
    };
    const auto lacks = [&](const MemoryBytes& host) {
      return available_.ranks * total_bytes(host) > available_.host;
    };
    constexpr const char* more =
        "give the job more of the machine's memory, start fewer ranks on a machine, ";
    if (lacks(needed.offloaded)) {
      const std::int64_t activations =
          needed.offloaded[static_cast<std::size_t>(MemoryCategory::activations)];
      return problem(
          needed.offloaded,
          2 * activations < total_bytes(needed.offloaded)
              ? fmt::format("memory.offload_optimizer = true keeps the optimizer's state there: {}let more "
                            "ranks share it (parallel.zero = 1, 2 or 3, docs/memory.md), or set "
                            "memory.offload_optimizer = false",
                            more)
              : fmt::format(
                    "memory.offload_activations keeps what layers need there: {}or offload fewer layers",
                    more));
    }
    MemoryBytes without_snapshot = needed.host.at_once;
    const std::int64_t snapshot = planner_.setting(memory).snapshot_bytes;
    at(without_snapshot, MemoryCategory::workspace) -= snapshot;
    if (lacks(without_snapshot))
      return problem(without_snapshot, remedy(memory, MemoryKind::host, without_snapshot));
    if (snapshot == 0 || !lacks(needed.host.at_once)) return {};
    return problem(
        needed.host.at_once,
        fmt::format("checkpoints are written from a copy of each rank's share, {}, while training goes on: "
                    "{}or set checkpoint.every = 0, which saves at the end and on signals alone",
                    bytes_text(snapshot), more));
  }

 private:
  /// The simplest settings with which the run would fit, where any does, and what helps where `bytes` are too
  /// many.
  std::string remedy(const Config::Memory& memory, MemoryKind kind, const MemoryBytes& bytes) {
    Config::Memory open = memory;
    open.recompute = {std::string(recompute_auto)};
    open.store_fraction = Config::Memory().store_fraction;
    open.layers_without_recompute = 0;
    for (const Config::Memory& choice : planner_.choices(open)) {
      const std::string keys = differences(choice, memory);
      if (!keys.empty() && missing(choice) <= 0)
        return fmt::format("{} would take {}, which fit; or {}", keys,
                           bytes_text(planner_.memory(choice, rank_).of(kind).total),
                           annulus::detail::memory_remedy(kind, bytes));
    }
    return annulus::detail::memory_remedy(kind, bytes);
  }

  MemoryPlanner& planner_;
  int rank_;
  Available available_;
};

/// `libraries`: what rehearse has measured. Without it what libraries take so far, and nothing to spare: they
/// may take more when the run begins.
Available available_to(comm::Communicator& world, const Config& config, const Hooks& hooks,
                       std::optional<std::int64_t> libraries) {
  Available available{.host = hooks.host_memory.value_or(available_host_memory()),
                      .ranks = ranks_here(world)};
  if (!computes_on_gpu(config)) return available;
  available.gpu = hooks.device_memory.value_or(device_memory().total);
  available.libraries = libraries.value_or(hooks.device_memory ? 0 : library_memory());
  if (config.chooses_recompute()) available.spare = spare_gpu_bytes(config, available.gpu);
  return available;
}

/// See RunMemory::predicted.
prediction::UpdateMemory predicted_memory(comm::Communicator& world, MemoryPlanner& planner,
                                          const Config::Memory& choice) {
  prediction::UpdateMemory memory = planner.memory(choice, world.rank() % planner.context());
  std::vector<std::int64_t> numbers;
  const auto visit = [&](const auto& action) {
    for (prediction::PeakBytes* peak : {&memory.host, &memory.device}) {
      action(peak->total);
      for (std::int64_t& bytes : peak->categories) action(bytes);
    }
  };
  visit([&](std::int64_t value) { numbers.push_back(value); });
  world.all_reduce(Queue(HostExec()), numbers.data(), numbers.size(), DType::i64, comm::ReduceOp::max);
  auto next = numbers.begin();
  visit([&](std::int64_t& value) { value = *next++; });
  return memory;
}

}  // namespace

std::string Available::text(std::int64_t arrays) const {
  if (gpu == 0) return fmt::format("{} are free on this machine for its ranks, {}", bytes_text(host), ranks);
  const std::string all =
      fmt::format("the GPU has {}, of which CUDA, NCCL and cuBLAS take {}; {} ({:.1f} %) stay free",
                  bytes_text(gpu), bytes_text(libraries), bytes_text(gpu - libraries - arrays),
                  100 * double(gpu - libraries - arrays) / double(gpu));
  return spare > 0
             ? fmt::format("{}, at least {} of them for gaps in the pool of arrays", all, bytes_text(spare))
             : all;
}

void check_offload(const Config& config, const Hooks& hooks) {
  if (hooks.offload_on_cpu || computes_on_gpu(config)) return;
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

MemoryChoices choose_memory(comm::Communicator& world, MemoryPlanner& planner,
                            const simulator::Cluster& cluster, const Available& available) {
  Needs needs(planner, world.rank() % planner.context(), available);
  MemoryChoices made =
      planner.choose(planner.configured(), cluster, [&](const std::vector<Config::Memory>& tried) {
        std::vector<std::int64_t> bytes;
        for (const Config::Memory& choice : tried) bytes.push_back(needs.missing(choice));
        world.all_reduce(Queue(HostExec()), bytes.data(), bytes.size(), DType::i64, comm::ReduceOp::max);
        return bytes;
      });
  if (made.fits()) return made;
  const Config::Memory& least = made.chosen().memory;
  const std::string problem = needs.problem(least);
  comm::throw_together(
      world, problem.empty()
                 ? ""
                 : fmt::format("memory.recompute = 'auto': nothing fits, and with {}, which takes least, {}",
                               outline(least), problem));
  return made;
}

RunMemory resolve_memory(comm::Communicator& world, comm::Communicator& context, const Config& config,
                         const ResolvedAttention& attention, const simulator::Cluster& cluster,
                         const Hooks& hooks) {
  const bool on_gpu = computes_on_gpu(config), chooses = config.chooses_recompute();
  MemoryPlanner planner(config, world.topology(), attention, on_gpu);
  std::optional<std::int64_t> libraries;
  if (chooses && (hooks.rehearse_on_cpu || (on_gpu && !hooks.device_memory)))
    libraries = world.all_reduce_value(rehearse(world, context, config, attention), comm::ReduceOp::max);
  const Available available = available_to(world, config, hooks, libraries);
  RunMemory made{.memory = config.memory, .reason = {}, .available = {}, .step_seconds = 0, .predicted = {}};
  if (chooses) {
    const MemoryChoices choices = choose_memory(world, planner, cluster, available);
    made.memory = choices.chosen().memory;
    made.reason = choices.reason();
  }
  // Ranks that share a GPU share its memory, but none of them knows of the others.
  comm::throw_together(world,
                       Needs(planner, world.rank() % planner.context(), available).problem(made.memory));
  made.predicted = predicted_memory(world, planner, made.memory);
  made.available = available.text(made.predicted.device.total);
  // The default cluster's GPUs say nothing about a CPU.
  if (world.rank() == 0 && (on_gpu || !config.attention.cluster.empty()))
    made.step_seconds = planner.time(made.memory, cluster).total();
  return made;
}

}  // namespace annulus::training
