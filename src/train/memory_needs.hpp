#pragma once

#include <annulus/comm/communicator.hpp>
#include <annulus/model/parameters.hpp>
#include <annulus/sharding/state_memory.hpp>
#include <annulus/train/config.hpp>

#include "train/hooks.hpp"

/// What a run will need, compared with what there is before it takes any of it.
namespace annulus::train {

/// Throws Error, the same on all ranks, where memory.offload_optimizer or memory.offload_activations
/// has no device to offload from.
void check_offload(const Config& config, const Hooks& hooks);

/// How the state of the model is held on `world`, by parallel.zero and parallel.shard.
sharding::StateLayout state_layout(const comm::Communicator& world, const Config& config);

/// Throws Error on all ranks where the state of the model (`config` knows its vocabulary), with its
/// activations, does not fit into the memory of one of them: it names the bytes by
/// category, what is there, the recompute policy that would fit, and the remedy for what takes most. Other
/// memory comes on top, so what passes may still be too much. `context_ranks` share a sequence. Collective,
/// before any of it is allocated.
void require_memory(comm::Communicator& world, int context_ranks, const Config& config, const Hooks& hooks);

}  // namespace annulus::train
