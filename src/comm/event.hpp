#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <annulus/comm/queue.hpp>

namespace annulus::comm {

/// A place in the work of a queue. Queues of the host, and devices whose events are not known here, have no
/// such places: there recording fences, and the place is always passed.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// The place is behind what `queue` (the stream) holds now.
  void record(const Queue& queue);
  void record(void* stream);
  /// What is enqueued from now on waits for the place. Keeps what was recorded, whatever is recorded next.
  void hold(const Queue& queue) const;
  void hold(void* stream) const;
  /// The work before the place is done. Any thread may ask. Never recorded: true.
  bool done() const;
  /// The host waits.
  void wait() const;

 private:
  void* handle_ = nullptr;
};

/// Events kept for reuse; making one takes longer than a small message. Outlives what it has given.
class EventPool {
 public:
  using Taken = std::shared_ptr<Event>;
  static Taken take(const std::shared_ptr<EventPool>& pool);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace annulus::comm
