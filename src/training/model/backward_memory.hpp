#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::model {

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

/// `kept`: of each layer, multiples of 256 bytes, the first one needed longest. `gradients`: fp32, by their
/// addresses. Both may be empty. The block has at least so many bytes.
BackwardLayout backward_layout(const ArrayTable& kept, const ArrayTable& gradients,
                               std::int64_t at_least = 0);

/// The block, which models that run a forward pass alone use, too, while there are neither kept tensors nor
/// gradients (ActivationOptions::forward_only). Its owner says when a gradient begins, in the order of the
/// work that is enqueued: nothing here waits or is enqueued. Counts as MemoryCategory::activations and
/// gradients, as BackwardLayout says.
template <class Exec>
class BackwardMemory {
 public:
  static constexpr MemoryKind kind = Owned<Array1<std::byte, Exec>>::kind;

  BackwardMemory(const Exec& exec, const ArrayTable& kept, ArrayTable gradients, std::int64_t at_least = 0);
  ~BackwardMemory();
  BackwardMemory(const BackwardMemory&) = delete;
  BackwardMemory& operator=(const BackwardMemory&) = delete;

  const BackwardLayout& layout() const { return layout_; }
  std::byte* block() const { return (*block_).data(); }
  /// Where the tensors of a layer begin.
  std::byte* kept(int layer) const {
    return (*block_).data() + layout_.kept[static_cast<std::size_t>(layer)];
  }
  /// All gradients, one behind the other, uninitialized: until a gradient begins, layers may write there.
  Array1<float, Exec> gradients() const {
    return Array1<float, Exec>(reinterpret_cast<float*>((*block_).data() + layout_.gradients),
                               bytes_of(gradients_) / static_cast<std::int64_t>(sizeof(float)));
  }

  /// Gradient `index` begins, unless it has since the last forget(). Whether it does: then its memory holds
  /// nothing of use.
  bool hold(int index);
  /// No gradient is needed any more; layers may keep tensors.
  void forget();

 private:
  void count(std::int64_t held);

  ArrayTable gradients_;
  BackwardLayout layout_;
  Owned<Array1<std::byte, Exec>> block_;
  std::vector<bool> holds_;
  std::int64_t held_ = 0;         // bytes
  std::int64_t activations_ = 0;  // bytes that count as such
};

}  // namespace annulus::model
