#include "comm/staged/staging.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <annulus/core/tensor.hpp>

namespace annulus::comm {

namespace {

std::size_t capacity_for(std::size_t bytes) {
  constexpr std::size_t page = 4096;  // less is not pinned
  return std::max(page, std::bit_ceil(bytes));
}

}  // namespace

PinnedPool::Buffer PinnedPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const Buffer& free) { return free.memory.view().size() == capacity; };
    const auto is_idle = [](const Buffer& free) { return !free.used || free.used->done(); };
    auto best = std::ranges::find_if(free_, [&](const Buffer& free) { return fits(free) && is_idle(free); });
    if (best == free_.end()) best = std::ranges::find_if(free_, fits);
    if (best != free_.end()) {
      buffer = std::move(*best);
      free_.erase(best);
    }
  }
  if (!buffer.memory.allocated()) {
    buffer.memory = Owned<Kokkos::View<std::byte*, PinnedSpace>>::uninitialized(
        HostExec(), MemoryCategory::communication, "annulus::comm::staging", capacity);
  }
  if (buffer.used) buffer.used->wait();
  buffer.used.reset();
  return buffer;
}

void PinnedPool::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

const Queue& Staging::outward(const Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (!outward_) outward_ = queue.beside();
  return *outward_;
}

const Queue& Staging::inward(const Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (!inward_) inward_ = queue.beside();
  return *inward_;
}

EventPool::Taken Staging::mark(const Queue& queue) const {
  EventPool::Taken event = EventPool::take(events);
  event->record(queue);
  return event;
}

void Staging::depart(const Departure& departure) {
  const std::lock_guard lock(mutex_);
  outbox_.push_back(departure);
}

void Staging::send_first() {
  const Departure first = outbox_.front();
  outbox_.pop_front();
  *first.request = first.inner->exchange(HostExec(), {&first.send, 1}, {}, first.channel);
}

bool Staging::pump() {
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty() && outbox_.front().on_host->done()) send_first();
  return outbox_.empty();
}

void Staging::flush() {
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty()) {
    outbox_.front().on_host->wait();
    send_first();
  }
}

void Staging::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  std::erase_if(outbox_, [&](const Departure& departure) { return departure.owner == owner; });
}

}  // namespace annulus::comm
