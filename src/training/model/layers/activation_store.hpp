#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/memory/pinned.hpp"
#include "training/model/backward_memory.hpp"
#include "training/model/layers/layer_arrays.hpp"
#include "training/model/model_arrays.hpp"

namespace annulus::model {

/// The activations of all layers of a rank. What layers keep may wait in pinned memory of the host: its
/// copies run on streams of their own beside the computation, those to the host while the next layers are
/// computed, those back one layer ahead.
template <class Exec, class T>
class ActivationStore {
 public:
  /// `memory`: for what layers keep on the device, or, under forward_only, for everything; null: the store
  /// has its own.
  ActivationStore(const Exec& exec, const Shapes& shapes, const ActivationOptions& options,
                  std::shared_ptr<BackwardMemory<Exec>> memory)
      : shapes_(shapes),
        options_(options),
        layout_(activation_layout(shapes, options)),
        memory_(memory != nullptr
                    ? std::move(memory)
                    : std::make_shared<BackwardMemory<Exec>>(exec, layout_.kept, ArrayTable())) {
    for (int policy = 0; policy < static_cast<int>(kept_.size()); ++policy)
      kept_[static_cast<std::size_t>(policy)] = placement_of_kept(shapes, static_cast<Recompute>(policy));
    turn_.assign(static_cast<std::size_t>(shapes.config.layers), -1);
    for (std::size_t index = 0; index < layout_.in_slots.size(); ++index)
      turn_[static_cast<std::size_t>(layout_.in_slots[index])] = static_cast<int>(index);
    if (options.forward_only) {
      const BackwardLayout places = backward_layout(layout_.kept, {});
      require(memory_->layout().bytes >= places.bytes,
              "a forward pass takes {} bytes for activations, the memory that it is lent has {}",
              places.bytes, memory_->layout().bytes);
      const auto place = [&](std::size_t i) { return memory_->block() + places.kept[i]; };
      shared_ = place(0);
      for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].memory = place(i + 1);
    } else {
      shared_ = own(exec, layout_.shared_block);
      for (std::size_t i = 0; i < std::min(slots_.size(), layout_.in_slots.size()); ++i)
        slots_[i].memory = own(exec, layout_.slot);
    }
    for (const PlannedArray& array : layout_.host) host_.push_back(allocate_pinned(array));
  }

  /// Arrays of the steps between the layers: nothing is kept.
  LayerArrays<Exec, T> between() const { return {&shapes_, {}, nullptr, shared_, nullptr, &layout_.shared}; }

  /// The arrays of a layer whose forward pass comes next. Its input may be written.
  LayerArrays<Exec, T> begin(const Exec& exec, int layer) {
    if (in_slot(layer)) slot_of(layer).left.block(Queue(exec));
    return arrays(layer, kept_by(shapes_.config, options_.of(layer)));
  }
  /// The forward pass of the layer is enqueued on `exec`, and a backward pass will follow.
  void end(const Exec& exec, int layer) {
    if (!in_slot(layer) || !layout_.leaves(index_of(layer))) return;
    Slot& slot = slot_of(layer);
    slot.used.record(Queue(exec));
    slot.used.block(Queue(*down_));
    Queue(*down_).copy_to_host(host_[index_of(layer)].data(), slot.memory,
                               static_cast<std::size_t>(kept_bytes(layer)));
    slot.left.record(Queue(*down_));
  }

  /// The arrays of a layer whose backward pass comes next, with what its forward pass has kept.
  LayerArrays<Exec, T> need(const Exec& exec, int layer) {
    if (in_slot(layer) && layout_.leaves(index_of(layer))) slot_of(layer).arrived.block(Queue(exec));
    return arrays(layer, own_in_backward(shapes_.config, options_.of(layer)));
  }
  /// The backward pass of the layer is enqueued on `exec`: its slot is free for a layer before it.
  void release(const Exec& exec, int layer) {
    if (!in_slot(layer) || index_of(layer) < slots_.size()) return;
    Slot& slot = slot_of(layer);
    const std::size_t next = index_of(layer) - slots_.size();
    slot.used.record(Queue(exec));
    slot.used.block(Queue(*up_));
    slot.left.block(Queue(*up_));
    Queue(*up_).copy_from_host(slot.memory, host_[next].data(),
                               static_cast<std::size_t>(kept_bytes(layout_.in_slots[next])));
    slot.arrived.record(Queue(*up_));
  }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    Event used;           // behind the last work of a layer
    Event left, arrived;  // behind the last copy to the host, and from it
  };

  std::byte* own(const Exec& exec, const PlannedArray& block) {
    blocks_.push_back(allocate<std::byte>(exec, block));
    return (*blocks_.back()).data();
  }

  bool in_slot(int layer) const { return turn_[static_cast<std::size_t>(layer)] >= 0; }
  std::size_t index_of(int layer) const {
    return static_cast<std::size_t>(turn_[static_cast<std::size_t>(layer)]);
  }
  Slot& slot_of(int layer) { return slots_[index_of(layer) % slots_.size()]; }
  const Placement& kept(int layer) const { return kept_[static_cast<std::size_t>(options_.of(layer))]; }
  std::int64_t kept_bytes(int layer) const { return kept(layer).bytes; }

  LayerArrays<Exec, T> arrays(int layer, TensorSet in_own) {
    std::byte* const own = in_slot(layer) ? slot_of(layer).memory : memory_->kept(layer);
    return {&shapes_, in_own, own, shared_, &kept(layer), &layout_.shared};
  }

  Shapes shapes_;
  ActivationOptions options_;
  ActivationLayout layout_;
  OwnInstance<Exec> down_, up_;    // streams of the copies
  std::array<Placement, 4> kept_;  // by policy
  std::shared_ptr<BackwardMemory<Exec>> memory_;
  std::vector<Owned<Array1<std::byte, Exec>>>
      blocks_;  // of shared_ and slots_, where these are not in memory_
  std::byte* shared_ = nullptr;
  std::vector<int> turn_;  // of each layer among layout_.in_slots; −1: it is none
  std::array<Slot, ActivationLayout::slots> slots_;
  std::vector<PinnedBuffer> host_;  // of each offloaded layer that leaves its slot
};

}  // namespace annulus::model
