#pragma once

#include <cstddef>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>

#include "distributed/exchange_layout.hpp"

namespace annulus::distributed {

/// The exchange slots and staging buffers of a rank, in one block of memory. It grows when plans need more
/// and is kept otherwise.
template <class Exec>
class Buffers {
 public:
  /// What they hold is lost.
  void reserve(const Exec& exec, const PassCapacity& capacity, DType activation) {
    capacity_.cover(capacity);
    layout_ = exchange_layout(capacity_, activation);
    if (bytes_.allocated() && bytes_.view().size() >= layout_.bytes) return;
    bytes_ = Bytes();  // before the new one is there, not beside it
    bytes_ = Bytes::uninitialized(exec, MemoryCategory::communication, "annulus::distributed::exchange",
                                  layout_.bytes);
  }

  void* slot(plan::Tensor tensor, plan::Slot slot) const {
    return at(layout_.slots[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(slot)]);
  }
  void* staging(int index) const { return at(layout_.staging[static_cast<std::size_t>(index)]); }

 private:
  using Bytes = Owned<Array1<std::byte, Exec>>;

  void* at(std::size_t offset) const { return bytes_.view().data() + offset; }

  PassCapacity capacity_;  // the most that plans have needed
  ExchangeLayout layout_;
  Bytes bytes_;
};

}  // namespace annulus::distributed
