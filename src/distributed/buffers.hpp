#pragma once

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <array>
#include <cstddef>
#include <vector>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>

#include "distributed/program.hpp"

namespace annulus::distributed {

/// The exchange slots and staging buffers of a rank. They grow when a plan needs more and are kept otherwise.
template <class Exec>
class Buffers {
 public:
  void reserve(const Exec& exec, const Capacity& capacity, DType activation) {
    for (std::size_t t = 0; t < slots_.size(); ++t) {
      const auto tensor = static_cast<plan::Tensor>(t);
      const auto& sizes = capacity.slots[t];
      if (slots_[t].size() < sizes.size()) slots_[t].resize(sizes.size());
      for (std::size_t s = 1; s < sizes.size(); ++s) {
        grow(exec, slots_[t][s], capacity.slot_bytes(tensor, s, activation),
             [&] { return fmt::format("annulus::distributed::{} slot {}", plan::name_of(tensor), s); });
      }
    }
    if (staging_.size() < capacity.staging.size()) staging_.resize(capacity.staging.size());
    for (std::size_t i = 0; i < capacity.staging.size(); ++i) {
      grow(exec, staging_[i], capacity.staging[i],
           [&] { return fmt::format("annulus::distributed::staging {}", i); });
    }
  }

  void* slot(plan::Tensor tensor, plan::Slot slot) const {
    return slots_[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(slot)].view().data();
  }
  void* staging(int index) const { return staging_[static_cast<std::size_t>(index)].view().data(); }

 private:
  using Bytes = Owned<Array1<std::byte, Exec>>;

  template <class Label>
  static void grow(const Exec& exec, Bytes& bytes, std::size_t size, const Label& label) {
    if (bytes.allocated() && bytes.view().size() >= size) return;
    bytes = Bytes();  // before the new one is there, not beside it
    bytes = Bytes::uninitialized(exec, MemoryCategory::communication, label(), size);
  }

  std::array<std::vector<Bytes>, plan::tensor_count> slots_;
  std::vector<Bytes> staging_;
};

}  // namespace annulus::distributed
