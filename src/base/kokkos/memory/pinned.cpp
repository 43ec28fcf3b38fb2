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
  constexpr std::size_t page = 4096;  // less is not pinned
  return std::max(page, std::bit_ceil(bytes));
}

}  // namespace

PinnedPool::PinnedPool(MemoryCategory category, std::string label)
    : category_(category), label_(std::move(label)) {}

PinnedPool::Buffer PinnedPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const Buffer& free) { return free.memory.size() == capacity; };
    const auto is_idle = [](const Buffer& free) { return !free.used || free.used->done(); };
    auto best = std::ranges::find_if(free_, [&](const Buffer& free) { return fits(free) && is_idle(free); });
    if (best == free_.end()) best = std::ranges::find_if(free_, fits);
    if (best != free_.end()) {
      buffer = std::move(*best);
      free_.erase(best);
    }
  }
  if (!buffer.memory.allocated()) buffer.memory = PinnedBuffer(category_, label_, capacity);
  if (buffer.used) buffer.used->wait();
  buffer.used.reset();
  return buffer;
}

void PinnedPool::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

}  // namespace annulus
