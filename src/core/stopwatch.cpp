#include <annulus/core/stopwatch.hpp>

#include <annulus/base/error.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>
#endif

namespace annulus::detail {

#ifdef KOKKOS_ENABLE_CUDA

namespace {

void require_success(cudaError_t code, const char* call) {
  require(code == cudaSuccess, "{} failed: {}", call, cudaGetErrorString(code));
}

cudaEvent_t event_of(void* handle) {
  return static_cast<cudaEvent_t>(handle);
}

void record(void* event, void* stream) {
  require_success(cudaEventRecord(event_of(event), static_cast<cudaStream_t>(stream)), "cudaEventRecord");
}

}  // namespace

StreamIntervals::~StreamIntervals() {
  for (const Pair& pair : open_) {
    cudaEventDestroy(event_of(pair.begin));
    if (pair.end != nullptr) cudaEventDestroy(event_of(pair.end));
  }
  for (void* const event : spare_) cudaEventDestroy(event_of(event));
}

void* StreamIntervals::take() {
  if (spare_.empty()) {
    cudaEvent_t event = nullptr;
    require_success(cudaEventCreate(&event), "cudaEventCreate");
    return event;
  }
  void* const event = spare_.back();
  spare_.pop_back();
  return event;
}

void StreamIntervals::begin(void* stream) {
  collect(false);
  open_.push_back({take(), nullptr});
  record(open_.back().begin, stream);
}

void StreamIntervals::end(void* stream) {
  open_.back().end = take();
  record(open_.back().end, stream);
}

void StreamIntervals::collect(bool all) {
  while (!open_.empty() && open_.front().end != nullptr) {
    const Pair pair = open_.front();
    if (all) require_success(cudaEventSynchronize(event_of(pair.end)), "cudaEventSynchronize");
    const cudaError_t state = cudaEventQuery(event_of(pair.end));
    if (state == cudaErrorNotReady) return;
    require_success(state, "cudaEventQuery");
    float milliseconds = 0;
    require_success(cudaEventElapsedTime(&milliseconds, event_of(pair.begin), event_of(pair.end)),
                    "cudaEventElapsedTime");
    seconds_ += 1e-3 * static_cast<double>(milliseconds);
    spare_.insert(spare_.end(), {pair.begin, pair.end});
    open_.pop_front();
  }
}

#else

StreamIntervals::~StreamIntervals() = default;
void StreamIntervals::begin(void*) {}
void StreamIntervals::end(void*) {}
void StreamIntervals::collect(bool) {}

#endif

double StreamIntervals::seconds() {
  collect(true);
  return seconds_;
}

void StreamIntervals::reset() {
  collect(true);
  seconds_ = 0;
}

}  // namespace annulus::detail
