#include "training/model/backward_memory.hpp"

#include <utility>

#include <annulus/base/division.hpp>

#include "base/kokkos/instantiate.hpp"
#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

BackwardLayout backward_layout(const ArrayTable& kept, const ArrayTable& gradients, std::int64_t at_least) {
  BackwardLayout layout;
  std::vector<std::int64_t> ends{0};  // of what so many layers keep
  for (const PlannedArray& layer : kept) {
    layout.kept.push_back(ends.back());
    ends.push_back(ends.back() + layer.bytes());
  }
  layout.kept_bytes = ends.back();
  std::int64_t before = 0;  // bytes of the gradients at lower addresses
  for (const PlannedArray& gradient : gradients) {
    // These layers still need what they keep when the gradient is first written.
    const auto layers = std::ranges::partition_point(
        kept, [&](const PlannedArray& layer) { return gradient.from < layer.to; });
    layout.gradients =
        std::max(layout.gradients, ends[static_cast<std::size_t>(layers - kept.begin())] - before);
    before += gradient.bytes();
  }
  layout.gradients = round_up(layout.gradients, array_alignment);
  layout.bytes = std::max({layout.kept_bytes, layout.gradients + before, at_least});
  return layout;
}

template <class Exec>
BackwardMemory<Exec>::BackwardMemory(const Exec& exec, const ArrayTable& kept, ArrayTable gradients,
                                     std::int64_t at_least)
    : gradients_(std::move(gradients)),
      layout_(backward_layout(kept, gradients_, at_least)),
      block_(Owned<Array1<std::byte, Exec>>::uncounted(exec, MemoryCategory::activations,
                                                       "annulus::model::backward_memory", layout_.bytes)),
      holds_(gradients_.size()),
      activations_(layout_.activations(0)) {
  annulus::detail::memory_allocated(kind, MemoryCategory::activations, activations_);
  annulus::detail::memory_allocated(kind, MemoryCategory::gradients, layout_.bytes - activations_);
}

template <class Exec>
BackwardMemory<Exec>::~BackwardMemory() {
  annulus::detail::memory_released(kind, MemoryCategory::activations, activations_);
  annulus::detail::memory_released(kind, MemoryCategory::gradients, layout_.bytes - activations_);
}

template <class Exec>
bool BackwardMemory<Exec>::hold(int index) {
  const auto i = static_cast<std::size_t>(index);
  if (holds_[i]) return false;
  holds_[i] = true;
  count(held_ + gradients_[i].bytes());
  return true;
}

template <class Exec>
void BackwardMemory<Exec>::forget() {
  holds_.assign(gradients_.size(), false);
  count(0);
}

template <class Exec>
void BackwardMemory<Exec>::count(std::int64_t held) {
  using enum MemoryCategory;
  held_ = held;
  const std::int64_t before = std::exchange(activations_, layout_.activations(held));
  if (before < activations_)
    annulus::detail::memory_moved(kind, gradients, activations, activations_ - before);
  else
    annulus::detail::memory_moved(kind, activations, gradients, before - activations_);
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, BackwardMemory)

}  // namespace annulus::model
