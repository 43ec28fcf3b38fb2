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

/// Before a loop whose count is known when it is compiled: device code has no loop there, so that an array
/// that the loop indexes can lie in registers. ANNULUS_UNROLL_TWICE keeps a longer loop, of two steps at
/// once.
#ifdef ANNULUS_DEVICE_PASS
#define ANNULUS_UNROLL _Pragma("unroll")
#define ANNULUS_UNROLL_TWICE _Pragma("unroll 2")
#else
#define ANNULUS_UNROLL
#define ANNULUS_UNROLL_TWICE
#endif
