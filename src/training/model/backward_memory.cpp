#include <annulus/training/model/backward_memory.hpp>

#include <utility>

#include <annulus/base/division.hpp>

#include "base/kokkos/instantiate.hpp"
#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

namespace {

std::int64_t bytes_of(std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

BackwardLayout backward_layout(std::span<const std::int64_t> kept, std::span<const HeldGradient> gradients) {
  BackwardLayout layout;
  std::vector<std::int64_t> ends{0};  // of what so many layers keep
  for (const std::int64_t bytes : kept) {
    layout.kept.push_back(ends.back());
    ends.push_back(ends.back() + bytes);
  }
  layout.kept_bytes = ends.back();
  std::int64_t before = 0;  // bytes of the gradients at lower addresses
  for (const HeldGradient& gradient : gradients) {
    const std::size_t layers = std::min(kept.size(), static_cast<std::size_t>(gradient.layers_before));
    layout.gradients = std::max(layout.gradients, ends[layers] - before);
    before += bytes_of(gradient.elements);
  }
  layout.gradients = round_up(layout.gradients, array_alignment);
  layout.bytes = std::max(layout.kept_bytes, layout.gradients + before);
  return layout;
}

template <class Exec>
BackwardMemory<Exec>::BackwardMemory(const Exec& exec, std::span<const std::int64_t> kept,
                                     std::vector<HeldGradient> gradients)
    : gradients_(std::move(gradients)),
      layout_(backward_layout(kept, gradients_)),
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
  count(held_ + bytes_of(gradients_[i].elements));
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

#define ANNULUS_INSTANTIATE(Exec) template class BackwardMemory<Exec>;
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
