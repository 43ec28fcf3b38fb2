#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

/// Where the activations of a model lie, and the arrays that hold them.
struct ActivationLayout {
  /// Bytes of what serves all layers in turn.
  Placement shared;
  PlannedArray shared_block;
  /// What each layer keeps for its backward pass, in BackwardMemory; 0 bytes where that is offloaded.
  ArrayTable kept;
  /// Layers whose kept tensors wait in memory of the host, in the order of the forward pass. They are
  /// computed in two slots of the device's memory in turn; the last two stay there.
  std::vector<int> offloaded;
  static constexpr int slots = 2;
  PlannedArray slot;
  /// Of each of `offloaded` that leaves its slot for a later one, in pinned memory.
  ArrayTable host;

  /// Whether the `index`-th of `offloaded` leaves its slot.
  bool leaves(std::size_t index) const { return index + slots < offloaded.size(); }
};
ActivationLayout activation_layout(const Shapes& shapes, const ActivationOptions& options);

/// The table of rotary positions: cosine and sine, (tokens, head_dim / 2) each.
ArrayTable rotary_arrays(const Config& config, std::int64_t tokens);

/// What a rank computes in a pass.
struct PassRows {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;  ///< of each sequence, on this rank
  std::int64_t early = 0;   ///< of these, before ActivationOptions::early_positions
};

/// What Model holds beside parameters and gradients, from the first optimizer step on. docs/memory.md derives
/// the sizes of activations.
struct ModelArrays {
  ArrayTable kept;    ///< ActivationLayout::kept
  ArrayTable others;  ///< from the start to the end of a run
};
/// Bytes of a model's activations in `type` (f32 or bf16), on the host or on a device, for so many passes in
/// an optimizer step.
ModelArrays model_arrays(const Config& config, const PassRows& rows, DType type,
                         const ActivationOptions& options, std::int64_t passes, bool on_host);

}  // namespace annulus::model
