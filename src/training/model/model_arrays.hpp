#pragma once

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
  /// What each layer keeps in BackwardMemory for its backward pass, 0 bytes where that is offloaded; of a
  /// forward-only model the shared block and the slots.
  ArrayTable kept;
  /// Layers that are computed in two slots of the device's memory in turn, in the order of the forward pass:
  /// those whose kept tensors wait in memory of the host, but for the last two, which stay there; of a
  /// forward-only model all of them, and none waits.
  std::vector<int> in_slots;
  static constexpr int slots = 2;
  PlannedArray slot;
  /// Memory of the host, pinned, for each of `in_slots` that leaves its slot for a later one.
  ArrayTable host;

  /// Whether the `index`-th of `in_slots` leaves its slot.
  bool leaves(std::size_t index) const { return index < host.size(); }
};
ActivationLayout activation_layout(const Shapes& shapes, const ActivationOptions& options);

/// The tables of rotary positions: cosine and sine, (layer_ropes, tokens, head_dim / 2) each; of all
/// sequences of a pass, and with the frequencies, where these have positions of their own.
ArrayTable rotary_arrays(const Config& config, std::int64_t tokens, std::int64_t sequences,
                         bool own_positions);

/// What a rank computes in a pass.
struct PassRows {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;     ///< of each sequence, on this rank
  std::int64_t early = 0;      ///< tokens before ActivationOptions::early_positions
  bool own_positions = false;  ///< each sequence has its own (Model::Options)
};

/// What Model holds beside parameters and gradients, from the first optimizer step on. docs/memory.md derives
/// the sizes of activations.
struct ModelArrays {
  ArrayTable kept;        ///< ActivationLayout::kept
  ArrayTable others;      ///< while the model is there
  PlannedArray products;  ///< of the thread or stream, whatever models compute there: the largest counts
};
/// Bytes of a model's activations in `type` (f32 or bf16), on the host or on a device, for so many passes in
/// an optimizer step.
ModelArrays model_arrays(const Config& config, const PassRows& rows, DType type,
                         const ActivationOptions& options, std::int64_t passes, bool on_host);

}  // namespace annulus::model
