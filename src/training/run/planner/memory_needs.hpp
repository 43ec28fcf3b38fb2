#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/training/run/config.hpp>

#include "training/run/hooks.hpp"
#include "training/run/planner/memory_planner.hpp"

/// What a run will need, compared with what there is before it takes any of it.
namespace annulus::training {

/// Throws Error, the same on all ranks, where memory.offload_optimizer or memory.offload_activations
/// has no device to offload from.
void check_offload(const Config& config, const Hooks& hooks);

/// What there is for a rank before its run takes any of it, in bytes.
struct Available {
  std::int64_t gpu = 0;        ///< of the GPU, whoever uses it; 0 on a CPU run
  std::int64_t libraries = 0;  ///< of these, what is not for arrays (library_memory)
  std::int64_t spare = 0;      ///< of these, what is to stay free (spare_gpu_bytes)
  std::int64_t host = 0;       ///< of the machine, for all its `ranks`
  int ranks = 1;
  std::int64_t device() const { return gpu - libraries - spare; }
  /// For the log, where arrays of the GPU take `arrays` bytes.
  std::string text(std::int64_t arrays) const;
};
/// `libraries`: what rehearse has measured. Without it what libraries take so far, and nothing to spare:
/// they may take more when the run begins. Collective; each rank has its own.
Available available_to(comm::Communicator& world, const Config& config, const Hooks& hooks,
                       std::optional<std::int64_t> libraries);

/// Throws Error on all ranks where what an optimizer step of `config` takes does not fit into what is
/// available to one of them: it names the bytes by category, what is there, settings with which the run would
/// fit, and the remedy for what takes most. Collective, before any of it is allocated.
void require_memory(comm::Communicator& world, MemoryPlanner& planner, const Config& config,
                    const Available& available);

/// What memory.recompute = 'auto' stands for, and why.
struct MemoryChoice {
  Config::Memory memory;
  std::string reason;  ///< for the log
};
/// What the arrays of a rank take at the moments of an optimizer step, and the peaks of the rank with the
/// most. Collective.
prediction::UpdateMemory predicted_memory(comm::Communicator& world, MemoryPlanner& planner,
                                          const Config& config);

/// Of the values of memory.* that the configuration of `planner` leaves open, those with which an optimizer
/// step takes the least time by `cluster` among those that fit on every rank. Of nearly equal ones the
/// simplest. Ranks with equally much memory choose the same again. Collective. Throws Error on all ranks
/// where nothing fits.
MemoryChoice choose_memory(comm::Communicator& world, MemoryPlanner& planner,
                           const simulator::Cluster& cluster, const Available& available);

}  // namespace annulus::training
