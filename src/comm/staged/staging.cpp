#include "comm/staged/staging.hpp"

#include <utility>

#include <annulus/core/tensor.hpp>

namespace annulus::comm {

PinnedPool::Buffer PinnedPool::take(std::size_t bytes) {
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    const auto is_better = [&](const Buffer& a, const Buffer& b) {
      const bool a_used = a.used && !a.used->done(), b_used = b.used && !b.used->done();
      return a_used != b_used ? b_used : a.memory.view().size() < b.memory.view().size();
    };
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->memory.view().size() >= bytes && (best == free_.end() || is_better(*it, *best))) best = it;
    if (best != free_.end()) {
      buffer = std::move(*best);
      free_.erase(best);
    }
  }
  if (!buffer.memory.allocated()) {
    buffer.memory = Owned<Kokkos::View<std::byte*, PinnedSpace>>::uninitialized(
        HostExec(), MemoryCategory::communication, "annulus::comm::staging", bytes);
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
