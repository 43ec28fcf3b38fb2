#pragma once

#include <map>
#include <mutex>

#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/gpu_runtime.hpp"

namespace annulus::linalg::detail {

/// Guards what libraries keep for streams, and what is enqueued through it.
inline std::mutex stream_contexts_mutex;

/// What a library keeps for the stream of `exec`, made from it when the stream is new. The caller holds
/// stream_contexts_mutex. A context goes when an OwnInstance ends with its stream, the others at
/// Kokkos::finalize.
template <class Context>
Context& context_of(const DeviceExec& exec) {
  static std::map<GpuStream, Context> contexts;
  static const bool cleared_in_time = [] {
    at_stream_end([](void* stream) {
      const std::lock_guard lock(stream_contexts_mutex);
      contexts.erase(static_cast<GpuStream>(stream));
    });
    Kokkos::push_finalize_hook([] {
      Kokkos::fence("annulus::linalg: GEMMs are done");
      contexts.clear();
    });
    return true;
  }();
  static_cast<void>(cleared_in_time);
  return contexts.try_emplace(gpu_stream(exec), exec).first->second;
}

}  // namespace annulus::linalg::detail
