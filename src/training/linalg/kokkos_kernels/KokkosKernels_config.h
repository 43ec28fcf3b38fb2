// Configuration of the Kokkos Kernels 5.0.2 headers, which normally comes out of its build. Annulus uses the
// headers alone: every kernel is instantiated where it is called, and BLAS products of the host go through
// host_blas.cpp.
#ifndef KOKKOSKERNELS_CONFIG_H
#define KOKKOSKERNELS_CONFIG_H

#include <Kokkos_Macros.hpp>

#define KOKKOSKERNELS_VERSION 50002
#define KOKKOSKERNELS_VERSION_MAJOR 5
#define KOKKOSKERNELS_VERSION_MINOR 0
#define KOKKOSKERNELS_VERSION_PATCH 2

// KOKKOSKERNELS_ETI_ONLY stays undefined: nothing is pre-instantiated, so any type may be instantiated.
#define KOKKOSKERNELS_IMPL_COMPILE_LIBRARY false
#define KOKKOSKERNELS_ENABLE_COMPONENT_BLAS

#define KOKKOSKERNELS_ENABLE_TPL_BLAS
#define KOKKOSKERNELS_ENABLE_TPL_CBLAS

#define KOKKOSKERNELS_INST_MEMSPACE_HOSTSPACE
#if defined(KOKKOS_ENABLE_OPENMP)
#define KOKKOSKERNELS_INST_EXECSPACE_OPENMP
#endif
#if defined(KOKKOS_ENABLE_SERIAL)
#define KOKKOSKERNELS_INST_EXECSPACE_SERIAL
#endif
#if !defined(KOKKOS_ENABLE_CUDA) && !defined(KOKKOS_ENABLE_HIP) && !defined(KOKKOS_ENABLE_SYCL)
#define KOKKOSKERNELS_ENABLE_HOST_ONLY
#endif

#endif
