#pragma once

#include <span>
#include <string>
#include <vector>

namespace annulus::model {

/// More is a slip.
inline constexpr int most_layers = 10'000;

/// What the attention of a layer is, where layers differ in it.
struct LayerKind {
  std::string mask;      ///< "causal" or "window:L,0", which a run's mask joins; empty: the run's alone
  float rope_theta = 0;  ///< base of its rotary positions; 0: the model's
  bool scaled = true;    ///< false: the model's rope scaling is not for it
  bool rotated = true;   ///< false: it has no rotary positions

  bool operator==(const LayerKind&) const = default;
};

/// The kinds of `layers` layers. The texts of `pattern` are lists of entries, with a comma and a blank
/// between them: "5*window:1023,0 theta=10000 scaling=none, causal" is five layers of one kind and a layer of
/// another. All entries together are repeated and cut to the layers; no text: all layers are LayerKind(). An
/// entry is a mask, causal or window:L,0, and what differs from the model's rotary positions: `theta=BASE`,
/// `scaling=none`, or `rope=none`. Throws Error naming model.pattern and the entry, and for more than
/// most_layers.
std::vector<LayerKind> layer_kinds(std::span<const std::string> pattern, int layers);

/// The inverse: the one pattern of these layers, without repetition; none where all are LayerKind().
std::vector<std::string> pattern_of(std::span<const LayerKind> kinds);

}  // namespace annulus::model
