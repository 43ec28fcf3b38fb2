#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/float16.hpp>
#include <annulus/core/tensor.hpp>

/// Lists of what attention is compiled for. The macro argument takes an execution space, or one and an
/// element type.

#if defined(KOKKOS_ENABLE_SERIAL) && \
    (defined(KOKKOS_ENABLE_OPENMP) || defined(KOKKOS_ENABLE_THREADS) || defined(KOKKOS_ENABLE_HPX))
#define ANNULUS_ATTENTION_SERIAL(INSTANTIATE, ...) INSTANTIATE(Kokkos::Serial __VA_OPT__(, ) __VA_ARGS__)
#else
#define ANNULUS_ATTENTION_SERIAL(INSTANTIATE, ...)
#endif

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define ANNULUS_ATTENTION_DEVICE(INSTANTIATE, ...) \
  INSTANTIATE(Kokkos::DefaultExecutionSpace __VA_OPT__(, ) __VA_ARGS__)
#else
#define ANNULUS_ATTENTION_DEVICE(INSTANTIATE, ...)
#endif

/// INSTANTIATE(Exec, further arguments) for the host's space, for Serial and for the device where these are
/// others.
#define ANNULUS_ATTENTION_SPACES(INSTANTIATE, ...)                 \
  INSTANTIATE(annulus::HostExec __VA_OPT__(, ) __VA_ARGS__)        \
  ANNULUS_ATTENTION_SERIAL(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__) \
  ANNULUS_ATTENTION_DEVICE(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__)

/// INSTANTIATE(Exec, T) for every space and every storage type.
#define ANNULUS_ATTENTION_SPACES_AND_TYPES(INSTANTIATE)    \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, float)             \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, annulus::bfloat16) \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, annulus::float16)
