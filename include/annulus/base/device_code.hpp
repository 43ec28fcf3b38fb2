#pragma once

/// What differs between the compilers of host and device code. It stands here, and not behind Kokkos' own
/// macros, because the pure C++20 part of the library (topology, sequence, plan) is compiled without Kokkos.
///
/// ANNULUS_FUNCTION marks a function that host and device code both call.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANNULUS_FUNCTION __host__ __device__
#else
#define ANNULUS_FUNCTION
#endif

/// Defined while a compiler makes the code of a device.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define ANNULUS_DEVICE_PASS
#endif
