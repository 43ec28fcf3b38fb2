#include "train/memory_needs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/fingerprint.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/core/device_pool.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/train/device.hpp>
#include <annulus/train/plan_memory.hpp>

#include "train/memory_planner.hpp"
#include "train/saver.hpp"

namespace annulus::train {

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

std::int64_t total(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
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

/// Of memory that `ranks` share, each of which needs `bytes`; `remedy` says which settings would fit.
std::string problem_of(MemoryKind kind, const MemoryBytes& bytes, int ranks, const Available& available,
                       const std::string& remedy) {
  return fmt::format(
      "the run does not fit: an optimizer step takes {} of {} memory on each rank ({}){}, and {} are free on "
      "the machine {}{}: {}{}",
      bytes_text(total(bytes)), name_of(kind), bytes_text(bytes),
      ranks > 1 ? fmt::format(", {} for the {} ranks of the machine", bytes_text(ranks * total(bytes)), ranks)
                : "",
      bytes_text(kind == MemoryKind::device ? available.device() : available.host), comm::machine_name(),
      kind == MemoryKind::device && available.gpu > available.device()
          ? fmt::format(
                " (of the {} of a GPU, CUDA, NCCL and cuBLAS take {}{})", bytes_text(available.gpu),
                bytes_text(available.libraries),
                available.spare > 0 ? fmt::format(", and {} stay free", bytes_text(available.spare)) : "")
          : "",
      remedy, annulus::detail::memory_remedy(kind, bytes));
}

/// Of this rank's part of the run.
class Needs {
 public:
  Needs(MemoryPlanner& planner, int rank, const Available& available)
      : planner_(planner), rank_(rank), available_(available) {}

  /// Bytes that are missing; 0 or less where everything fits.
  std::int64_t missing(const Config::Memory& memory) {
    const forecast::UpdateMemory needed = planner_.memory(memory, rank_);
    std::int64_t missing = available_.ranks * needed.host.total - available_.host;
    if (planner_.on_gpu()) missing = std::max(missing, needed.device.total - available_.device());
    return missing;
  }

  /// Empty where everything fits.
  std::string problem(const Config& config) {
    const forecast::UpdateMemory needed = planner_.memory(config.memory, rank_);
    const std::int64_t snapshot = planner_.setting(config.memory).snapshot_bytes;
    MemoryBytes host = needed.host.at_once;
    host[static_cast<std::size_t>(MemoryCategory::workspace)] -= snapshot;
    std::string text;
    if (planner_.on_gpu() && needed.device.total > available_.device())
      return problem_of(MemoryKind::device, needed.device.at_once, 1, available_, remedy(config));
    text = offload_problem(needed.offloaded, available_.ranks, available_.host);
    if (text.empty() && available_.ranks * total(host) > available_.host)
      text = problem_of(MemoryKind::host, host, available_.ranks, available_, remedy(config));
    if (text.empty() && snapshot > 0)
      text = snapshot_problem(snapshot, total(host), available_.ranks, available_.host);
    return text;
  }

 private:
  /// The simplest settings with which the run would fit; empty where none does.
  std::string remedy(const Config& config) {
    Config::Memory open = config.memory;
    open.recompute = {std::string(recompute_auto)};
    open.store_fraction = Config::Memory().store_fraction;
    open.layers_without_recompute = 0;
    for (const Config::Memory& choice : planner_.choices(open)) {
      const std::string keys = differences(choice, config.memory);
      if (!keys.empty() && missing(choice) <= 0)
        return fmt::format("{} would take {}, which fit; or ", keys,
                           bytes_text(planner_.on_gpu() ? planner_.memory(choice, rank_).device.total
                                                        : planner_.memory(choice, rank_).host.total));
    }
    return {};
  }

  MemoryPlanner& planner_;
  int rank_;
  Available available_;
};

}  // namespace

Available available_to(comm::Communicator& world, const Config& config, const Hooks& hooks,
                       std::optional<std::int64_t> libraries) {
  Available available{.host = hooks.host_memory.value_or(available_host_memory()),
                      .ranks = ranks_here(world)};
  if (device_of(config) == Device::cpu) return available;
  available.gpu = hooks.device_memory.value_or(device_memory().total);
  available.libraries = libraries.value_or(hooks.device_memory ? 0 : library_memory());
  if (config.chooses_recompute()) available.spare = spare_gpu_bytes(config, available.gpu);
  return available;
}

std::string Available::text(std::int64_t arrays) const {
  return fmt::format(
      "memory of the GPU: {} in all, of which CUDA, NCCL and cuBLAS take {} (measured) and arrays {} "
      "(predicted); {} ({:.1f} %) stay free, at least {} of them for gaps in the pool of arrays",
      bytes_text(gpu), bytes_text(libraries), bytes_text(arrays), bytes_text(gpu - libraries - arrays),
      100 * double(gpu - libraries - arrays) / double(gpu), bytes_text(spare));
}

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

void require_memory(comm::Communicator& world, MemoryPlanner& planner, const Config& config,
                    const Available& available) {
  // Ranks that share a GPU share its memory, but none of them knows of the others.
  Needs needs(planner, world.rank() % planner.context(), available);
  comm::throw_together(world, needs.problem(config));
}

MemoryChoice choose_memory(comm::Communicator& world, MemoryPlanner& planner,
                           const simulate::Cluster& cluster, const Available& available) {
  const Config::Memory open = planner.config().memory;
  Needs needs(planner, world.rank() % planner.context(), available);
  std::vector<Config::Memory> choices = planner.choices(open);
  const MemoryPlanner::Missing missing_of = [&](const std::vector<Config::Memory>& tried) {
    std::vector<std::int64_t> bytes;
    for (const Config::Memory& choice : tried) bytes.push_back(needs.missing(choice));
    world.all_reduce(Queue(HostExec()), bytes.data(), bytes.size(), DType::i64, comm::ReduceOp::max);
    return bytes;
  };
  std::vector<std::int64_t> missing = missing_of(choices);
  const std::vector<Config::Memory> more = planner.with_less_recompute(choices, missing, missing_of);
  choices.insert(choices.end(), more.begin(), more.end());
  missing.resize(choices.size(), 0);  // they fit
  std::vector<ForecastChoice> forecasts;
  for (std::size_t i = 0; i < choices.size(); ++i)
    forecasts.push_back(
        {.memory = choices[i], .time = planner.time(choices[i], cluster), .missing = missing[i]});
  const std::optional<std::size_t> best = fastest_that_fits(forecasts);
  if (!best) {
    // The error of the one that needs least names what is missing.
    const auto least = std::ranges::min_element(missing) - missing.begin();
    Config config = planner.config();
    config.memory = choices[static_cast<std::size_t>(least)];
    const std::string problem = needs.problem(config);
    comm::throw_together(world, problem.empty() ? ""
                                                : fmt::format("memory.recompute = 'auto': nothing fits, "
                                                              "and with {}, which takes least, {}",
                                                              outline(config.memory), problem));
    return {.memory = config.memory, .reason = reason_of(forecasts, static_cast<std::size_t>(least))};
  }
  return {.memory = forecasts[*best].memory, .reason = reason_of(forecasts, *best)};
}

}  // namespace annulus::train
