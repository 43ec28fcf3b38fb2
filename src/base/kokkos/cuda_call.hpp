#pragma once

#include <Kokkos_Macros.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>

#include <annulus/base/error.hpp>

namespace annulus::detail {

/// Throws Error with the call and what CUDA says of it unless all went well.
inline void require_cuda(cudaError_t code, const char* call) {
  require(code == cudaSuccess, "{} failed: {}", call, cudaGetErrorString(code));
}

}  // namespace annulus::detail

#define ANNULUS_CUDA_CALL(function, ...) ::annulus::detail::require_cuda(function(__VA_ARGS__), #function)
#endif
