#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus {

/// Host memory that the device reads and writes directly; plain host memory in a build without a device.
using PinnedSpace = Kokkos::SharedHostPinnedSpace;

/// Pinned bytes of the host, uninitialized, counted in the memory report as the host's. Copies between it and
/// the device run while the host goes on (Queue::copy_to_host, copy_from_host). Pinning takes longer than
/// most copies: keep the buffer, or take it from a PinnedPool.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// The label reads "annulus::<module>::<what>". Throws Error when the memory does not suffice.
  PinnedBuffer(MemoryCategory category, const std::string& label, std::size_t bytes);

  std::byte* data() const { return memory_.view().data(); }
  std::size_t size() const { return memory_.view().size(); }  ///< bytes
  bool allocated() const { return memory_.allocated(); }
  /// The bytes as size() / sizeof(T) values; aligned for every arithmetic type.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data()), size() / sizeof(T)};
  }

 private:
  Owned<Kokkos::View<std::byte*, PinnedSpace>> memory_;
};

/// Pinned buffers, kept for the next user. A buffer serves requests of about one size, so that what is
/// allocated depends on the requests alone, not on which of them happened to end first. Sizes are powers of
/// two from 4 KiB on: of each there are as many buffers as were in use at once, so that the memory has a
/// bound where requests have one, whatever their sizes. Thread safe.
class PinnedPool {
 public:
  struct Buffer {
    PinnedBuffer memory;
    EventPool::Taken used;  ///< behind the last copy that reads or writes it; null: none does
    std::byte* data() const { return memory.data(); }
  };

  static constexpr std::size_t least_bytes = 4096;  ///< of a buffer: less is not pinned

  /// What the buffers count as, and their label.
  PinnedPool(MemoryCategory category, std::string label);

  /// A free buffer for about `bytes`: one that no copy uses, else the one given back first, waited for; a new
  /// one where none is free. Throws Error when the memory does not suffice.
  Buffer take(std::size_t bytes);
  /// Makes buffers for about `bytes` each until there are `count` of this size, in use or free.
  void reserve(std::size_t bytes, std::size_t count);
  /// Set Buffer::used before where copies are still under way.
  void give_back(Buffer buffer);

 private:
  struct OfSize {
    std::list<Buffer> free;  ///< the one given back first in front
    std::size_t made = 0;    ///< in use or free
  };

  MemoryCategory category_;
  std::string label_;
  std::mutex mutex_;
  std::map<std::size_t, OfSize> sizes_;  ///< by bytes
};

}  // namespace annulus
