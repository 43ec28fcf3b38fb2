#pragma once

#include <cstdint>
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

/// What there is for a rank before its run takes any of it, in bytes. Each rank has its own.
struct Available {
  std::int64_t gpu = 0;        ///< of the GPU, whoever uses it; 0 on a CPU run
  std::int64_t libraries = 0;  ///< bytes of the GPU that are not for arrays (library_memory)
  std::int64_t spare = 0;      ///< bytes of the GPU that are to stay free (spare_gpu_bytes)
  std::int64_t host = 0;       ///< of the machine, for all its `ranks`
  int ranks = 1;
  std::int64_t device() const { return gpu - libraries - spare; }
  /// What there is, for the log, where arrays of the GPU take `arrays` bytes.
  std::string text(std::int64_t arrays) const;
};
/// Chooses the values of memory.* that the configuration of `planner` leaves open: among those that fit on
/// every rank those with which an optimizer step takes the least time by `cluster`, of nearly equal ones the
/// simplest. Ranks with equally much memory choose the same again. Collective. Throws Error on all ranks
/// where nothing fits.
MemoryChoices choose_memory(comm::Communicator& world, MemoryPlanner& planner,
                            const simulator::Cluster& cluster, const Available& available);

/// How much memory a run goes with.
struct RunMemory {
  Config::Memory memory;          ///< the configuration's, or what its 'auto' stands for
  std::string reason, available;  ///< for the log: why that was chosen, and what there is
  double step_seconds = 0;        ///< of an optimizer step, as predicted, on rank 0; 0: by no rates
  /// What arrays of this rank take at the moments of an optimizer step, and the peaks of the rank with the
  /// most.
  prediction::UpdateMemory predicted;
};
/// Chooses where memory.recompute = 'auto', by `cluster`, and compares what an optimizer step takes with what
/// is there, before any of it is allocated. Collective over `world`, of which `context` is this rank's
/// context-parallel group. Throws Error on all ranks where one has too little: it
/// names the bytes by category, what is there, settings with which the run would fit, and the remedy for what
/// takes most.
RunMemory resolve_memory(comm::Communicator& world, comm::Communicator& context, const Config& config,
                         const ResolvedAttention& attention, const simulator::Cluster& cluster,
                         const Hooks& hooks);

}  // namespace annulus::training
