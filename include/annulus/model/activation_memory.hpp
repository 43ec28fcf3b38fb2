#pragma once

#include <cstdint>

#include <annulus/base/dtype.hpp>
#include <annulus/model/config.hpp>
#include <annulus/model/recompute.hpp>

namespace annulus::model {

/// What a rank computes in a pass.
struct PassRows {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;  ///< of each sequence, on this rank
  std::int64_t early = 0;   ///< of these, before ActivationOptions::early_positions
};

/// Bytes that Llama holds for the activations of a rank. docs/memory.md derives them.
struct ActivationMemory {
  std::int64_t kept = 0;     ///< by layers for their backward passes, in memory of the device
  std::int64_t working = 0;  ///< what serves all layers in turn, and the slots of offloaded layers
  std::int64_t host = 0;     ///< offloaded, pinned
  std::int64_t device() const { return kept + working; }
};

/// Of a model in `type` (f32 or bf16). Token ids, the table of rotary positions and the buffers of
/// attention's exchanges and of the LM head come on top.
ActivationMemory activation_memory(const LlamaConfig& config, const PassRows& rows, DType type,
                                   const ActivationOptions& options);

}  // namespace annulus::model
