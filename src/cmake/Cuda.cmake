# The cuda preset: Kokkos with CUDA beside OpenMP in one tree. CXX stays the host compiler; Kokkos' own launcher sends the
# sources that depend on Kokkos through nvcc, all others straight to it. Nothing here needs a GPU or a driver.

# Virtual architecture of each compute capability in Kokkos' names.
set(ANNULUS_CUDA_ARCHITECTURES_KNOWN 70 75 80 86 89 90 100 120)
set(ANNULUS_CUDA_NAME_70 VOLTA70)
set(ANNULUS_CUDA_NAME_75 TURING75)
set(ANNULUS_CUDA_NAME_80 AMPERE80)
set(ANNULUS_CUDA_NAME_86 AMPERE86)
set(ANNULUS_CUDA_NAME_89 ADA89)
set(ANNULUS_CUDA_NAME_90 HOPPER90)
set(ANNULUS_CUDA_NAME_100 BLACKWELL100)
set(ANNULUS_CUDA_NAME_120 BLACKWELL120)

set(ANNULUS_CUDA_ARCHITECTURES ${ANNULUS_CUDA_ARCHITECTURE})  # ascending, each once
list(REMOVE_DUPLICATES ANNULUS_CUDA_ARCHITECTURES)
list(SORT ANNULUS_CUDA_ARCHITECTURES COMPARE NATURAL)
if(NOT ANNULUS_CUDA_ARCHITECTURES)
  message(FATAL_ERROR "ANNULUS_CUDA_ARCHITECTURE is empty: give the compute capabilities of the GPUs without their dots (90 for an H100 or H200)")
endif()
foreach(architecture IN LISTS ANNULUS_CUDA_ARCHITECTURES)
  if(NOT architecture IN_LIST ANNULUS_CUDA_ARCHITECTURES_KNOWN)
    message(FATAL_ERROR "ANNULUS_CUDA_ARCHITECTURE: ${architecture} is not known: give compute capabilities of the GPUs without their "
      "dots, separated by semicolons, of ${ANNULUS_CUDA_ARCHITECTURES_KNOWN} (90 for an H100 or H200)")
  endif()
endforeach()
# Kokkos takes one architecture. Its code for the lowest one runs on all newer GPUs, compiled again when a program starts there;
# annulus_compile_for_more_gpus() adds machine code for the others.
list(GET ANNULUS_CUDA_ARCHITECTURES 0 ANNULUS_CUDA_LOWEST_ARCHITECTURE)

find_package(CUDAToolkit 12.4 QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(FATAL_ERROR "ANNULUS_CUDA needs the CUDA toolkit (12.4 or newer) with its compiler nvcc, which was not found: put nvcc "
    "into PATH or set -DCUDAToolkit_ROOT=DIR; without an NVIDIA GPU use the preset cpu")
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION} found at ${CUDAToolkit_NVCC_EXECUTABLE}")

if(CMAKE_CXX_COMPILER_LAUNCHER)
  # Kokkos' launcher recognizes the compiler by its name, and ccache in front would hide it: all of the sources would go
  # past nvcc.
  message(WARNING "ANNULUS_CUDA: CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} is left aside: it would "
    "keep sources from nvcc")
  set(CMAKE_CXX_COMPILER_LAUNCHER "" CACHE STRING "" FORCE)
endif()

# Sources that are CUDA and nothing else (*.cu); those that depend on Kokkos are C++ to CMake.
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
set(CMAKE_CUDA_ARCHITECTURES ${ANNULUS_CUDA_LOWEST_ARCHITECTURE})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that newer compilers take it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# Once Kokkos has set its launcher.
function(annulus_compile_for_more_gpus)
  set(flags)
  foreach(architecture IN LISTS ANNULUS_CUDA_ARCHITECTURES)
    if(NOT architecture EQUAL ANNULUS_CUDA_LOWEST_ARCHITECTURE)
      string(APPEND flags " --generate-code=arch=compute_${architecture},code=sm_${architecture}")
    endif()
  endforeach()
  if(flags)
    # By the environment, because Kokkos' wrapper of nvcc takes one architecture only.
    get_property(launcher GLOBAL PROPERTY RULE_LAUNCH_COMPILE)
    set_property(GLOBAL PROPERTY RULE_LAUNCH_COMPILE "${CMAKE_COMMAND} -E env \"NVCC_APPEND_FLAGS=${flags}\" ${launcher}")
  endif()
endfunction()

# A target of CUDA sources for one architecture alone, whatever the others are for.
function(annulus_compile_for_one_gpu target architecture)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES ${architecture} RULE_LAUNCH_COMPILE "${CMAKE_COMMAND} -E env")
endfunction()

# NCCL, for exchanges between GPUs; without it they go through MPI.
find_path(ANNULUS_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Directory of nccl.h")
find_library(ANNULUS_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} DOC "NCCL's library")
set(ANNULUS_NCCL)
if(ANNULUS_NCCL_INCLUDE AND ANNULUS_NCCL_LIBRARY)
  set(ANNULUS_NCCL ${ANNULUS_NCCL_LIBRARY} CUDA::cudart)
  message(STATUS "NCCL found at ${ANNULUS_NCCL_LIBRARY}")
else()
  message(STATUS "NCCL not found: GPUs exchange through MPI alone (give -DANNULUS_NCCL_INCLUDE=DIR and -DANNULUS_NCCL_LIBRARY=FILE)")
endif()
