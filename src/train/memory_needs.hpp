#pragma once

#include <string>

#include <annulus/comm/communicator.hpp>
#include <annulus/simulate/cluster.hpp>
#include <annulus/train/config.hpp>

#include "train/hooks.hpp"
#include "train/memory_planner.hpp"

/// What a run will need, compared with what there is before it takes any of it.
namespace annulus::train {

/// Throws Error, the same on all ranks, where memory.offload_optimizer or memory.offload_activations
/// has no device to offload from.
void check_offload(const Config& config, const Hooks& hooks);

/// Throws Error on all ranks where what an optimizer step of `config` takes does not fit into the memory of
/// one of them: it names the bytes by category, what is there, settings with which the run would fit, and the
/// remedy for what takes most. Libraries' memory comes on top, so what passes may still be too much.
/// Collective, before any of it is allocated.
void require_memory(comm::Communicator& world, MemoryPlanner& planner, const Config& config,
                    const Hooks& hooks);

/// What memory.recompute = 'auto' stands for, and why.
struct MemoryChoice {
  Config::Memory memory;
  std::string reason;  ///< for the log
};
/// Of the values of memory.* that the configuration of `planner` leaves open, those with which an optimizer
/// step takes the least time by `cluster` among those that fit on every rank. Of nearly equal ones the
/// simplest. Ranks with equally much free memory choose the same again. Collective. Throws Error on all ranks
/// where nothing fits.
MemoryChoice choose_memory(comm::Communicator& world, MemoryPlanner& planner,
                           const simulate::Cluster& cluster, const Hooks& hooks);

}  // namespace annulus::train
