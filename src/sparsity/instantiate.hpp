#pragma once

#include <annulus/base/float16.hpp>
#include <annulus/core/tensor.hpp>

/// MACRO(Exec) and MACRO(Exec, T) for the spaces and types that the library is built for.
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define ANNULUS_SPARSITY_SPACES(MACRO) \
  MACRO(annulus::HostExec)             \
  MACRO(Kokkos::DefaultExecutionSpace)
#define ANNULUS_SPARSITY_SPACES_AND_TYPES(MACRO)          \
  MACRO(annulus::HostExec, float)                         \
  MACRO(annulus::HostExec, annulus::bfloat16)             \
  MACRO(annulus::HostExec, annulus::float16)              \
  MACRO(Kokkos::DefaultExecutionSpace, float)             \
  MACRO(Kokkos::DefaultExecutionSpace, annulus::bfloat16) \
  MACRO(Kokkos::DefaultExecutionSpace, annulus::float16)
#else
#define ANNULUS_SPARSITY_SPACES(MACRO) MACRO(annulus::HostExec)
#define ANNULUS_SPARSITY_SPACES_AND_TYPES(MACRO) \
  MACRO(annulus::HostExec, float)                \
  MACRO(annulus::HostExec, annulus::bfloat16)    \
  MACRO(annulus::HostExec, annulus::float16)
#endif
