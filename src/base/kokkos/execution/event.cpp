#include "base/kokkos/execution/event.hpp"

#include <mutex>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/gpu_runtime.hpp"

namespace annulus {

#ifdef ANNULUS_GPU_RUNTIME

namespace {

GpuEvent event_of(void* handle) {
  return static_cast<GpuEvent>(handle);
}

GpuStream as_stream(void* stream) {
  return static_cast<GpuStream>(stream);
}

}  // namespace

Event::~Event() {
  if (handle_ != nullptr) static_cast<void>(ANNULUS_GPU(EventDestroy)(event_of(handle_)));
}

void Event::record(void* stream) {
  if (stream == nullptr) return;
  if (handle_ == nullptr) {
    GpuEvent event = nullptr;
    const unsigned flags =
        timing_ == Timing::on ? ANNULUS_GPU(EventDefault) : ANNULUS_GPU(EventDisableTiming);
    ANNULUS_GPU_CALL(EventCreateWithFlags, &event, flags);
    handle_ = event;
  }
  ANNULUS_GPU_CALL(EventRecord, event_of(handle_), as_stream(stream));
  on_stream_ = true;
}

void Event::block(void* stream) const {
  if (!on_stream_ || stream == nullptr) return;
  ANNULUS_GPU_CALL(StreamWaitEvent, as_stream(stream), event_of(handle_), 0);
}

bool Event::done() const {
  if (!on_stream_) return true;
  const GpuError state = ANNULUS_GPU(EventQuery)(event_of(handle_));
  if (state == ANNULUS_GPU(ErrorNotReady)) return false;
  detail::require_gpu(state, ANNULUS_GPU_TEXT(ANNULUS_GPU(EventQuery)));
  return true;
}

void Event::wait() const {
  if (on_stream_) ANNULUS_GPU_CALL(EventSynchronize, event_of(handle_));
}

#else

Event::~Event() = default;
void Event::record(void*) {}
void Event::block(void*) const {}
bool Event::done() const {
  return true;
}
void Event::wait() const {}

#endif

Event::Event(Event&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      timing_(other.timing_),
      on_stream_(std::exchange(other.on_stream_, false)),
      passed_(other.passed_) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(timing_, other.timing_);
  std::swap(on_stream_, other.on_stream_);
  std::swap(passed_, other.passed_);
  return *this;
}

void Event::record(const Queue& queue) {
  if (queue.stream() != nullptr) return record(queue.stream());
  queue.fence("annulus::core::Event: no events here");
  on_stream_ = false;
  if (timing_ == Timing::on) passed_ = Clock::now();
}

void Event::block(const Queue& queue) const {
  // A queue of the host has no stream that could wait.
  if (queue.stream() == nullptr) return wait();
  block(queue.stream());
}

double Event::seconds_between(const Event& begin, const Event& end) {
  require(begin.timing_ == Timing::on && end.timing_ == Timing::on,
          "annulus::core::Event: seconds between events that were made without Timing::on");
  require(begin.on_stream_ == end.on_stream_,
          "annulus::core::Event: seconds between a point in a stream and one of the host");
#ifdef ANNULUS_GPU_RUNTIME
  if (begin.on_stream_) {
    float milliseconds = 0;
    ANNULUS_GPU_CALL(EventElapsedTime, &milliseconds, event_of(begin.handle_), event_of(end.handle_));
    return 1e-3 * static_cast<double>(milliseconds);
  }
#endif
  return std::chrono::duration<double>(end.passed_ - begin.passed_).count();
}

struct EventPool::Free {
  std::mutex mutex;
  std::vector<std::unique_ptr<Event>> events;
};

EventPool::EventPool() : free_(std::make_shared<Free>()) {}

EventPool::Taken EventPool::take() {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->events.empty()) {
      event = std::move(free_->events.back());
      free_->events.pop_back();
    }
  }
  if (!event) event = std::make_unique<Event>();
  return {event.release(), [free = free_](Event* used) {
            const std::lock_guard lock(free->mutex);
            free->events.emplace_back(used);
          }};
}

EventPool::Taken EventPool::record(const Queue& queue) {
  Taken event = take();
  event->record(queue);
  return event;
}

}  // namespace annulus
