# Third-party packages. An installed Kokkos is taken first; otherwise the sources that './annulus setup' unpacked,
# otherwise the official release is downloaded.
include(FetchContent)

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
if(ANNULUS_PREDICTION)
  find_package(tomlplusplus REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.1)
endif()
if(ANNULUS_TRAINING)
  find_package(spdlog REQUIRED)
  find_package(nlohmann_json 3.10 REQUIRED)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
endif()
if(ANNULUS_APPS)
  find_package(CLI11 REQUIRED)
endif()
if(ANNULUS_TESTS)
  find_package(GTest REQUIRED)
  if(ANNULUS_TRAINING)
    find_package(HDF5 REQUIRED COMPONENTS C)
  endif()
endif()

if(ANNULUS_CUDA)
  include(Cuda)
endif()
find_package(Kokkos 5.0 CONFIG QUIET)
set(ANNULUS_KOKKOS_INSTALLED ${Kokkos_FOUND})  # otherwise a part of this tree
if(ANNULUS_KOKKOS_INSTALLED)
  message(STATUS "Kokkos ${Kokkos_VERSION} found at ${Kokkos_DIR}")
  if(ANNULUS_CUDA AND NOT CUDA IN_LIST Kokkos_DEVICES)
    message(FATAL_ERROR "ANNULUS_CUDA: the Kokkos at ${Kokkos_DIR} was built without CUDA: give another with -DKokkos_ROOT=DIR, "
      "or let Annulus build its own with -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON")
  elseif(NOT ANNULUS_CUDA AND CUDA IN_LIST Kokkos_DEVICES)
    message(FATAL_ERROR "the Kokkos at ${Kokkos_DIR} was built with CUDA, and programs that use it start on machines with a GPU "
      "alone: set -DANNULUS_CUDA=ON (the preset cuda), or let Annulus build its own with -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON")
  endif()
elseif(ANNULUS_KOKKOS_KERNELS STREQUAL "installed")
  message(FATAL_ERROR "ANNULUS_KOKKOS_KERNELS=installed needs an installed Kokkos 5.0 or newer, which was not found: give its prefix, "
    "-DKokkos_ROOT=DIR (with modules or Spack: load kokkos), or drop the option, and Annulus builds its own")
else()
  set(Kokkos_ENABLE_SERIAL ON CACHE BOOL "")
  set(Kokkos_ENABLE_OPENMP ON CACHE BOOL "")
  if(ANNULUS_NATIVE)
    set(Kokkos_ARCH_NATIVE ON CACHE BOOL "")
  endif()
  if(ANNULUS_CUDA)
    set(Kokkos_ENABLE_CUDA ON CACHE BOOL "")
    set(Kokkos_ARCH_${ANNULUS_CUDA_NAME_${ANNULUS_CUDA_LOWEST_ARCHITECTURE}} ON CACHE BOOL "")
  endif()
  if(EXISTS ${ANNULUS_DEPS_DIR}/kokkos-5.0.2/CMakeLists.txt)
    set(FETCHCONTENT_SOURCE_DIR_KOKKOS ${ANNULUS_DEPS_DIR}/kokkos-5.0.2 CACHE PATH "Kokkos sources")
  endif()
  FetchContent_Declare(Kokkos
    URL https://github.com/kokkos/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz
    URL_HASH SHA256=188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e
    DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  set(CMAKE_UNITY_BUILD ${ANNULUS_UNITY})  # its sources have names of their own
  FetchContent_MakeAvailable(Kokkos)
  unset(CMAKE_UNITY_BUILD)
endif()

if(ANNULUS_CUDA)
  annulus_compile_for_more_gpus()
endif()

if(ANNULUS_TRAINING)
  include(KokkosKernels)
endif()
