#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// Lists of what templates are compiled for. The macro argument takes an execution space, or one and an
/// element type, and what else the list is given.

/// INSTANTIATE(Exec, further arguments) for the device's space, where there is a device.
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define ANNULUS_ON_DEVICE(INSTANTIATE, ...) \
  INSTANTIATE(Kokkos::DefaultExecutionSpace __VA_OPT__(, ) __VA_ARGS__)
#else
#define ANNULUS_ON_DEVICE(INSTANTIATE, ...)
#endif

/// INSTANTIATE(Exec, further arguments) for the host's space and the device's.
#define ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, ...)        \
  INSTANTIATE(annulus::HostExec __VA_OPT__(, ) __VA_ARGS__) \
  ANNULUS_ON_DEVICE(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__)

/// INSTANTIATE(Exec, T, further arguments) for both spaces and the types that training computes in.
#define ANNULUS_FOR_TRAINING(INSTANTIATE, ...)                              \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, float __VA_OPT__(, ) __VA_ARGS__) \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, annulus::bfloat16 __VA_OPT__(, ) __VA_ARGS__)

/// INSTANTIATE(Exec, T, further arguments) for both spaces and the storage types of attention.
#define ANNULUS_FOR_ATTENTION(INSTANTIATE, ...)                \
  ANNULUS_FOR_TRAINING(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__) \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, annulus::float16 __VA_OPT__(, ) __VA_ARGS__)

/// INSTANTIATE of a class or function template, whose name is the further argument: over execution spaces, or
/// (TYPED) over these and element types. Functions must have no overloads.
#define ANNULUS_COMPILE_CLASS(Exec, NAME) template class NAME<Exec>;
#define ANNULUS_COMPILE_TYPED_CLASS(Exec, T, NAME) template class NAME<Exec, T>;
#define ANNULUS_COMPILE_FUNCTION(Exec, NAME) template decltype(NAME<Exec>) NAME<Exec>;
#define ANNULUS_COMPILE_TYPED_FUNCTION(Exec, T, NAME) template decltype(NAME<Exec, T>) NAME<Exec, T>;
