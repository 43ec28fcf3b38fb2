#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/kokkos/memory.hpp>

namespace annulus {

/// Buffers of the host that are kept for the next user: getting memory from the system and touching its pages
/// for the first time takes longer than most uses do. Thread safe.
template <class Space>
class BufferPool {
 public:
  using Buffer = Owned<Kokkos::View<std::byte*, Space>>;
  static_assert(Buffer::kind == MemoryKind::host, "memory of the device has a pool of its own");

  BufferPool(MemoryCategory category, std::string label) : category_(category), label_(std::move(label)) {}

  /// The smallest free buffer that holds `bytes`. Where there is none a new one, in place of the largest free
  /// one, so that requests that grow leave no trail.
  Buffer take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto best = std::find_if(free_.begin(), free_.end(),
                                   [&](const Buffer& buffer) { return buffer.view().size() >= bytes; });
    if (best == free_.end()) {
      if (!free_.empty()) free_.pop_back();
      return Buffer::uninitialized(HostExec(), category_, label_, bytes);
    }
    Buffer buffer = std::move(*best);
    free_.erase(best);
    return buffer;
  }
  void give_back(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    const auto size = buffer.view().size();
    const auto place = std::find_if(free_.begin(), free_.end(),
                                    [&](const Buffer& other) { return other.view().size() > size; });
    free_.insert(place, std::move(buffer));
  }
  /// Gives all free buffers back to the system.
  void clear() {
    const std::lock_guard lock(mutex_);
    free_.clear();
  }

 private:
  MemoryCategory category_;
  std::string label_;
  std::mutex mutex_;
  std::vector<Buffer> free_;  // from small to large
};

}  // namespace annulus
