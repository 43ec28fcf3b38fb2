#pragma once

/// Marks a function that host and device code both call. It stands here, and not behind Kokkos' own macro,
/// because the pure C++20 part of the library (topology, sequence, plan) is compiled without Kokkos.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANNULUS_FUNCTION __host__ __device__
#else
#define ANNULUS_FUNCTION
#endif
