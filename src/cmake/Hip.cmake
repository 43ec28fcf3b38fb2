# The hip preset: Kokkos with HIP beside OpenMP in one tree. CXX is a clang that knows HIP; Kokkos sends the sources that depend on
# it through HIP (-xhip), all others are plain C++. Nothing here needs a GPU or a driver.

# Architectures in Kokkos' names.
set(ANNULUS_HIP_ARCHITECTURES_KNOWN gfx908 gfx90a gfx942 gfx1030 gfx1100)
if(NOT ANNULUS_HIP_ARCHITECTURE IN_LIST ANNULUS_HIP_ARCHITECTURES_KNOWN)
  message(FATAL_ERROR "ANNULUS_HIP_ARCHITECTURE: ${ANNULUS_HIP_ARCHITECTURE} is not known: give one of ${ANNULUS_HIP_ARCHITECTURES_KNOWN} "
    "(gfx90a for an MI250, gfx942 for an MI300)")
endif()
string(TOUPPER AMD_${ANNULUS_HIP_ARCHITECTURE} ANNULUS_HIP_NAME)

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "ANNULUS_HIP needs a clang that compiles HIP, and the C++ compiler is ${CMAKE_CXX_COMPILER}: './annulus build hip' "
    "takes the one of hipcc; by hand set -DCMAKE_CXX_COMPILER=amdclang++ (or the clang++ that 'hipconfig --hipclangpath' names); without "
    "an AMD GPU use the preset cpu")
endif()
find_package(hip CONFIG QUIET PATHS $ENV{ROCM_PATH} /opt/rocm)
if(NOT hip_FOUND OR hip_VERSION VERSION_LESS 6.2)
  message(FATAL_ERROR "ANNULUS_HIP needs ROCm's HIP 6.2 or newer, and found '${hip_VERSION}': set the variable ROCM_PATH of the environment "
    "to the folder of ROCm (with modules: load rocm)")
endif()
message(STATUS "HIP ${hip_VERSION} found at ${hip_DIR}")
# What Kokkos leaves to the machine that compiles would be that of its GPU.
set(GPU_TARGETS ${ANNULUS_HIP_ARCHITECTURE} CACHE STRING "GPUs of HIP's own packages")

if(ANNULUS_TRAINING)
  find_package(hipblas CONFIG QUIET PATHS $ENV{ROCM_PATH} /opt/rocm)
  if(NOT hipblas_FOUND OR hipblas_VERSION VERSION_LESS 2.0)
    message(FATAL_ERROR "ANNULUS_HIP needs hipBLAS 2.0 or newer for matrix products, and found '${hipblas_VERSION}': install it beside HIP "
      "(Debian: libhipblas-dev), or build the attention alone, -DANNULUS_TRAINING=OFF")
  endif()
endif()

# RCCL, for exchanges between GPUs; without it they go through MPI. NcclLink splits communicators, which RCCL can since ROCm 6.0.
find_path(ANNULUS_NCCL_INCLUDE rccl/rccl.h HINTS $ENV{ROCM_PATH}/include /opt/rocm/include DOC "Directory of rccl/rccl.h")
find_library(ANNULUS_NCCL_LIBRARY rccl HINTS $ENV{ROCM_PATH}/lib /opt/rocm/lib DOC "RCCL's library")
set(ANNULUS_NCCL)
if(ANNULUS_NCCL_INCLUDE AND ANNULUS_NCCL_LIBRARY)
  file(STRINGS ${ANNULUS_NCCL_INCLUDE}/rccl/rccl.h splits REGEX "ncclCommSplit")
  if(splits)
    set(ANNULUS_NCCL ${ANNULUS_NCCL_LIBRARY} hip::host)
    message(STATUS "RCCL found at ${ANNULUS_NCCL_LIBRARY}")
  endif()
endif()
if(NOT ANNULUS_NCCL)
  message(STATUS "no RCCL of ROCm 6.0 or newer found: GPUs exchange through MPI alone (give -DANNULUS_NCCL_INCLUDE=DIR and -DANNULUS_NCCL_LIBRARY=FILE)")
endif()
