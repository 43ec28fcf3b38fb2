#pragma once

#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "training/run/config/resolve.hpp"

namespace annulus::training {

/// Makes one optimizer step of a single layer of the model of `config`, on a short sequence and under the
/// causal mask, and drops it. Libraries then hold what they take for the whole run: NCCL connects two ranks
/// when the first message goes between them, CUDA loads a kernel when it starts first, cuBLASLt has a handle
/// for a stream. Returns the bytes of this rank's GPU that they held while the layer was there
/// (library_memory); 0 on a CPU.
///
/// `attention` is that of the run, whose schedule and layout the step takes. No result of the run depends on
/// it. Collective over `world`, of which `context` is this rank's context-parallel group.
std::int64_t rehearse(comm::Communicator& world, comm::Communicator& context, const Config& config,
                      ResolvedAttention attention);

}  // namespace annulus::training
