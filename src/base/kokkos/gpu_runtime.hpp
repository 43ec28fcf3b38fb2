#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// The runtime of a vendor's GPUs, CUDA or HIP, under one name: both have the same functions, types and
/// constants behind a prefix of their own. ANNULUS_GPU(Malloc) is cudaMalloc or hipMalloc. What differs by
/// more than the prefix has a name of ours below. ANNULUS_GPU_RUNTIME is defined where there is such a
/// runtime.
#if defined(KOKKOS_ENABLE_CUDA)
#include <cuda_runtime.h>
#define ANNULUS_GPU_RUNTIME "CUDA"
#define ANNULUS_GPU_VENDOR "NVIDIA"
#define ANNULUS_GPU(name) cuda##name
#define ANNULUS_GPU_INSTANCE(name) cuda_##name
#define ANNULUS_GPU_HAS_MEMORY_POOLS cudaDevAttrMemoryPoolsSupported
#elif defined(KOKKOS_ENABLE_HIP)
#include <hip/hip_runtime.h>
#define ANNULUS_GPU_RUNTIME "HIP"
#define ANNULUS_GPU_VENDOR "AMD"
#define ANNULUS_GPU(name) hip##name
#define ANNULUS_GPU_INSTANCE(name) hip_##name
#define ANNULUS_GPU_HAS_MEMORY_POOLS hipDeviceAttributeMemoryPoolsSupported
#endif

#ifdef ANNULUS_GPU_RUNTIME

namespace annulus {

using GpuError = ANNULUS_GPU(Error_t);
using GpuStream = ANNULUS_GPU(Stream_t);
using GpuEvent = ANNULUS_GPU(Event_t);

/// The number and the stream of an instance of Kokkos::Cuda or Kokkos::HIP, and what its GPU is called.
inline int gpu_device(const DeviceExec& exec = DeviceExec()) {
  return exec.ANNULUS_GPU_INSTANCE(device)();
}
inline GpuStream gpu_stream(const DeviceExec& exec) {
  return exec.ANNULUS_GPU_INSTANCE(stream)();
}
inline const char* gpu_name(const DeviceExec& exec = DeviceExec()) {
  return exec.ANNULUS_GPU_INSTANCE(device_prop)().name;
}

namespace detail {

/// Throws Error with the call and what the runtime says of it unless all went well.
inline void require_gpu(GpuError code, const char* call) {
  require(code == ANNULUS_GPU(Success), "{} failed: {}", call, ANNULUS_GPU(GetErrorString)(code));
}

}  // namespace detail
}  // namespace annulus

#define ANNULUS_GPU_TEXT_OF(name) #name
#define ANNULUS_GPU_TEXT(name) ANNULUS_GPU_TEXT_OF(name)
/// Calls a function of the runtime, named without prefix; throws Error where it fails.
#define ANNULUS_GPU_CALL(function, ...) \
  ::annulus::detail::require_gpu(ANNULUS_GPU(function)(__VA_ARGS__), ANNULUS_GPU_TEXT(ANNULUS_GPU(function)))
#endif
