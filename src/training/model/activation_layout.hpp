#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

/// Where the activations of a model lie.
struct ActivationLayout {
  /// Of what serves all layers in turn.
  Placement shared;
  /// Layers whose kept tensors wait in memory of the host, in the order of the forward pass. They are
  /// computed in two slots of the device's memory in turn; the last two stay there.
  std::vector<int> offloaded;
  static constexpr int slots = 2;
  std::int64_t slot_bytes = 0;  // of one slot
  /// Whether what the `index`-th of `offloaded` keeps has to leave its slot for a later one.
  bool leaves(std::size_t index) const { return index + slots < offloaded.size(); }
  std::vector<std::int64_t> kept;  // bytes of what each of the other layers keeps, of the device
  std::int64_t own() const { return std::accumulate(kept.begin(), kept.end(), std::int64_t{0}); }
  std::int64_t host = 0;         // bytes of the host, pinned
  std::int64_t device() const {  // bytes
    const auto used = std::min<std::int64_t>(slots, static_cast<std::int64_t>(offloaded.size()));
    return shared.bytes + own() + used * slot_bytes;
  }
};

/// Of the table of rotary positions: cosine and sine, (tokens, head_dim / 2) each in fp32.
inline std::int64_t rotary_bytes(const Config& config, std::int64_t tokens) {
  return 2 * tokens * (config.head_dim / 2) * static_cast<std::int64_t>(sizeof(float));
}

ActivationLayout activation_layout(const Shapes& shapes, const ActivationOptions& options);

}  // namespace annulus::model
