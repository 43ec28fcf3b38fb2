#include "comm/event.hpp"

#include <utility>

#include <annulus/base/error.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>
#endif

namespace annulus::comm {

#ifdef KOKKOS_ENABLE_CUDA

namespace {

void check(cudaError_t code, const char* call) {
  require(code == cudaSuccess, "{} failed: {}", call, cudaGetErrorString(code));
}

}  // namespace

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

void Event::record(void* stream) {
  if (stream == nullptr) return;
  if (handle_ == nullptr) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    handle_ = event;
  }
  check(cudaEventRecord(static_cast<cudaEvent_t>(handle_), static_cast<cudaStream_t>(stream)),
        "cudaEventRecord");
}

void Event::hold(void* stream) const {
  if (handle_ == nullptr || stream == nullptr) return;
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(handle_), 0),
        "cudaStreamWaitEvent");
}

bool Event::done() const {
  if (handle_ == nullptr) return true;
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

void Event::wait() const {
  if (handle_ != nullptr)
    check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)), "cudaEventSynchronize");
}

#else

Event::~Event() = default;
void Event::record(void*) {}
void Event::hold(void*) const {}
bool Event::done() const {
  return true;
}
void Event::wait() const {}

#endif

void Event::record(const Queue& queue) {
  if (queue.stream() == nullptr) return queue.fence("annulus::comm::Event: no events here");
  record(queue.stream());
}

void Event::hold(const Queue& queue) const {
  hold(queue.stream());
}

EventPool::Taken EventPool::take(const std::shared_ptr<EventPool>& pool) {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(pool->mutex_);
    if (!pool->free_.empty()) {
      event = std::move(pool->free_.back());
      pool->free_.pop_back();
    }
  }
  if (!event) event = std::make_unique<Event>();
  return {event.release(), [pool](Event* used) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_.emplace_back(used);
          }};
}

}  // namespace annulus::comm
