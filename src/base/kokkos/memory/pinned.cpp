#include "base/kokkos/memory/pinned.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

namespace annulus {

PinnedBuffer::PinnedBuffer(MemoryCategory category, const std::string& label, std::size_t bytes)
    : memory_(
          Owned<Kokkos::View<std::byte*, PinnedSpace>>::uninitialized(HostExec(), category, label, bytes)) {}

namespace {

std::size_t capacity_for(std::size_t bytes) {
  return std::max(PinnedPool::least_bytes, std::bit_ceil(bytes));
}

}  // namespace

PinnedPool::PinnedPool(MemoryCategory category, std::string label)
    : category_(category), label_(std::move(label)) {}

PinnedPool::Buffer PinnedPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    OfSize& size = sizes_[capacity];
    const auto is_idle = [](const Buffer& free) { return !free.used || free.used->done(); };
    auto best = std::ranges::find_if(size.free, is_idle);
    if (best == size.free.end()) best = size.free.begin();
    if (best != size.free.end()) {
      buffer = std::move(*best);
      size.free.erase(best);
    } else {
      ++size.made;
    }
  }
  if (!buffer.memory.allocated()) buffer.memory = PinnedBuffer(category_, label_, capacity);
  if (buffer.used) buffer.used->wait();
  buffer.used.reset();
  return buffer;
}

void PinnedPool::reserve(std::size_t bytes, std::size_t count) {
  const std::size_t capacity = capacity_for(bytes);
  const std::lock_guard lock(mutex_);
  for (OfSize& size = sizes_[capacity]; size.made < count; ++size.made)
    size.free.push_back({.memory = PinnedBuffer(category_, label_, capacity), .used = {}});
}

void PinnedPool::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  sizes_[buffer.memory.size()].free.push_back(std::move(buffer));
}

}  // namespace annulus
