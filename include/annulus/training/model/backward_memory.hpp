#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::model {

/// A gradient that a rank holds from the backward pass to the optimizer's update: of a unit, or this rank's
/// shard of it.
struct HeldGradient {
  std::int64_t elements = 0;  ///< fp32
  /// So many layers, the first ones of the model, still need what they keep when it is first written.
  int layers_before = 0;
};

/// Elements of all.
inline std::int64_t elements_of(std::span<const HeldGradient> gradients) {
  return std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                         [](std::int64_t sum, const HeldGradient& g) { return sum + g.elements; });
}

/// How what layers keep for their backward passes and the gradients that these leave share a block of
/// memory. Kept tensors lie at its start, those of the first layer first; gradients at its end, those of the
/// last unit last. The backward pass gives back the last layer's tensors first, and makes the last unit's
/// gradient first, so that gradients grow into what the layers have given back:
///
///   after the forward pass   | layer 0 | layer 1 | layer 2 |           |
///   in the backward pass     | layer 0 | layer 1 |   | g(2) | g(head)  |
///   after it                 | g(embedding) | g(0) | g(1) | g(2) | g(head) |
struct BackwardLayout {
  std::vector<std::int64_t> kept;  ///< where the tensors of each layer begin, in bytes
  std::int64_t kept_bytes = 0;     ///< of all layers
  std::int64_t gradients = 0;      ///< where the gradients begin, in bytes
  std::int64_t bytes = 0;          ///< of the block: the most that is needed at one moment

  /// Bytes of the block that count as activations while gradients of `held` bytes are there; the others
  /// count as gradients.
  std::int64_t activations(std::int64_t held) const { return std::min(kept_bytes, bytes - held); }
};

/// `kept`: bytes of each layer, multiples of 256. `gradients`: by their addresses. Both may be empty.
BackwardLayout backward_layout(std::span<const std::int64_t> kept, std::span<const HeldGradient> gradients);

/// The block. Its owner says when a gradient begins, in the order of the work that is enqueued: nothing here
/// waits or is enqueued. Counts as MemoryCategory::activations and gradients, as BackwardLayout says.
template <class Exec>
class BackwardMemory {
 public:
  static constexpr MemoryKind kind = Owned<Array1<std::byte, Exec>>::kind;

  BackwardMemory(const Exec& exec, std::span<const std::int64_t> kept, std::vector<HeldGradient> gradients);
  ~BackwardMemory();
  BackwardMemory(const BackwardMemory&) = delete;
  BackwardMemory& operator=(const BackwardMemory&) = delete;

  const BackwardLayout& layout() const { return layout_; }
  /// Where the tensors of a layer begin.
  std::byte* kept(int layer) const {
    return (*block_).data() + layout_.kept[static_cast<std::size_t>(layer)];
  }
  /// All gradients, (elements_of), uninitialized: until a gradient begins, layers may write there.
  Array1<float, Exec> gradients() const {
    return Array1<float, Exec>(reinterpret_cast<float*>((*block_).data() + layout_.gradients),
                               elements_of(gradients_));
  }

  /// Gradient `index` begins, unless it has since the last forget(). Whether it does: then its memory holds
  /// nothing of use.
  bool hold(int index);
  /// No gradient is needed any more; layers may keep tensors.
  void forget();

 private:
  void count(std::int64_t held);

  std::vector<HeldGradient> gradients_;
  BackwardLayout layout_;
  Owned<Array1<std::byte, Exec>> block_;
  std::vector<bool> holds_;
  std::int64_t held_ = 0;         // bytes
  std::int64_t activations_ = 0;  // bytes that count as such
};

}  // namespace annulus::model
