#pragma once

#include <cstdint>
#include <string_view>

namespace annulus::model {

/// What a layer keeps from its forward pass for its backward pass; the rest is computed again there. All
/// policies give the same bits.
enum class Recompute : std::uint8_t {
  none,  ///< everything that the backward pass reads
  full,  ///< its input alone (gradient checkpointing, Chen et al. 2016): the layer is computed twice
  /// Its input, attention's output and LSE: everything but attention is computed twice (selective
  /// checkpointing++, BurstEngine, section 3.2; the rematerialization-aware checkpoints of DistFlashAttn,
  /// section 3.3).
  selective
};
std::string_view name_of(Recompute recompute);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
Recompute parse_recompute(std::string_view name, std::string_view field);

}  // namespace annulus::model
