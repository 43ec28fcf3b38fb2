#pragma once

#include <cstdint>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/training/model/config.hpp>
#include <annulus/training/model/recompute.hpp>

namespace annulus::model {

/// What a rank computes in a pass.
struct PassRows {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;  ///< of each sequence, on this rank
  std::int64_t early = 0;   ///< of these, before ActivationOptions::early_positions
};

/// Bytes that Model holds for the activations of a rank. docs/memory.md derives them.
struct ActivationMemory {
  std::int64_t kept = 0;  ///< by layers for their backward passes, in memory of the device
  std::vector<std::int64_t> kept_by_layer = {};  ///< 0 where it is offloaded
  std::int64_t working = 0;  ///< what serves all layers and the LM head in turn; slots of offloaded layers
  std::int64_t rotary = 0;   ///< the table of rotary positions
  std::int64_t host = 0;     ///< offloaded, pinned
  std::int64_t device() const { return kept + working + rotary; }
};

/// Of a model in `type` (f32 or bf16), on the host or on a device. Token ids, the buffers of attention's
/// exchanges and some more come on top (other_memory, executor::exchange_memory).
ActivationMemory activation_memory(const Config& config, const PassRows& rows, DType type,
                                   const ActivationOptions& options, bool on_host);

/// Bytes that Model holds beside activations and parameters.
struct OtherMemory {
  std::int64_t workspace = 0;  ///< of losses and of products, from the first pass on
  std::int64_t token_ids = 0;  ///< MemoryCategory::data, where the model computes
  std::int64_t staging = 0;    ///< MemoryCategory::data, pinned memory of the host
};
/// `passes`: of an optimizer step.
OtherMemory other_memory(const Config& config, const PassRows& rows, DType type,
                         const ActivationOptions& options, std::int64_t passes, bool on_host);

}  // namespace annulus::model
