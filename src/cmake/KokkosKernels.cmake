# Which Kokkos Kernels multiplies matrices on the host. Included after Kokkos was found or added.
#
# An installed, compiled one (Spack, modules, a prefix) is used as it is, with the BLAS that it was built with:
# ANNULUS_KOKKOS_KERNELS_INSTALLED is ON then, and the target Kokkos::kokkoskernels. Otherwise the bundled headers are
# used (src/training/linalg says how), with OpenBLAS.
set(ANNULUS_KOKKOS_KERNELS automatic CACHE STRING
    "Kokkos Kernels: installed (find_package), headers (bundled, with OpenBLAS), automatic (installed where it is found)")
set_property(CACHE ANNULUS_KOKKOS_KERNELS PROPERTY STRINGS automatic installed headers)
set(ANNULUS_KOKKOS_KERNELS_OLDEST 5.0)
set(ANNULUS_KOKKOS_KERNELS_INSTALLED OFF)

set(kernels_fallback "or take the bundled headers with OpenBLAS: -DANNULUS_KOKKOS_KERNELS=headers")
if(NOT ANNULUS_KOKKOS_KERNELS MATCHES "^(automatic|installed|headers)$")
  message(FATAL_ERROR "ANNULUS_KOKKOS_KERNELS=${ANNULUS_KOKKOS_KERNELS}: give automatic, installed or headers")
endif()
set(kernels_asked)  # where the user says that there is one
foreach(where IN ITEMS "${KokkosKernels_DIR}" "${KokkosKernels_ROOT}" "$ENV{KokkosKernels_ROOT}" "$ENV{KOKKOSKERNELS_ROOT}")
  if(where AND NOT kernels_asked)
    set(kernels_asked ${where})
  endif()
endforeach()
if(ANNULUS_KOKKOS_KERNELS STREQUAL "installed" AND NOT kernels_asked)
  set(kernels_asked "CMAKE_PREFIX_PATH and the system's folders")
endif()

if(ANNULUS_KOKKOS_KERNELS STREQUAL "headers")
elseif(NOT ANNULUS_KOKKOS_INSTALLED)
  # Its package would bring a second Kokkos in beside the one of this tree.
  if(kernels_asked)
    message(FATAL_ERROR "the Kokkos Kernels at ${kernels_asked} needs the installed Kokkos that it was built with, and this build "
      "makes a Kokkos of its own: give that Kokkos too, -DKokkos_ROOT=DIR (with modules or Spack: load kokkos), ${kernels_fallback}")
  endif()
else()
  find_package(KokkosKernels CONFIG QUIET)
  if(NOT KokkosKernels_FOUND)
    if(kernels_asked)
      message(FATAL_ERROR "no Kokkos Kernels was found at ${kernels_asked}${KokkosKernels_NOT_FOUND_MESSAGE}: give the prefix that "
        "holds lib/cmake/KokkosKernels, -DKokkosKernels_ROOT=DIR (with modules or Spack: load kokkos-kernels), ${kernels_fallback}")
    endif()
  elseif(KokkosKernels_VERSION VERSION_LESS ANNULUS_KOKKOS_KERNELS_OLDEST)
    message(FATAL_ERROR "the Kokkos Kernels at ${KokkosKernels_DIR} is version ${KokkosKernels_VERSION}, and Annulus needs "
      "${ANNULUS_KOKKOS_KERNELS_OLDEST} or newer, as for Kokkos: give a newer one, -DKokkosKernels_ROOT=DIR (with Spack: "
      "spack load kokkos-kernels@5:), ${kernels_fallback}")
  else()
    set(ANNULUS_KOKKOS_KERNELS_INSTALLED ON)
  endif()
endif()

if(ANNULUS_KOKKOS_KERNELS_INSTALLED)
  get_target_property(kernels_include Kokkos::kokkoskernels INTERFACE_INCLUDE_DIRECTORIES)
  find_file(ANNULUS_KOKKOS_KERNELS_CONFIG KokkosKernels_config.h PATHS ${kernels_include} NO_DEFAULT_PATH NO_CACHE)
  find_file(ANNULUS_KOKKOS_KERNELS_GEMM KokkosBlas3_gemm.hpp PATHS ${kernels_include} NO_DEFAULT_PATH NO_CACHE)
  if(NOT ANNULUS_KOKKOS_KERNELS_CONFIG OR NOT ANNULUS_KOKKOS_KERNELS_GEMM)
    message(FATAL_ERROR "the Kokkos Kernels at ${KokkosKernels_DIR} was built without KokkosBlas (KokkosBlas3_gemm.hpp): give another, "
      "-DKokkosKernels_ROOT=DIR, ${kernels_fallback}")
  endif()
  # The package names the Kokkos that it was built with as a hint.
  file(STRINGS ${KokkosKernels_DIR}/KokkosKernelsConfig.cmake kernels_hint REGEX "HINTS +[^ )]+")
  if(kernels_hint MATCHES "HINTS +([^ )]+)" AND IS_DIRECTORY "${CMAKE_MATCH_1}")
    file(REAL_PATH ${CMAKE_MATCH_1} kernels_kokkos)
    file(REAL_PATH ${Kokkos_DIR} kernels_our_kokkos)
    if(NOT kernels_kokkos STREQUAL kernels_our_kokkos)
      message(WARNING "the Kokkos Kernels at ${KokkosKernels_DIR} was built with the Kokkos at ${kernels_kokkos}, and Annulus uses the "
        "one at ${kernels_our_kokkos}: give both the same, -DKokkos_ROOT=DIR, ${kernels_fallback}")
    endif()
  endif()
  include(CMakePushCheckState)
  include(CheckCXXSourceCompiles)
  unset(ANNULUS_KOKKOS_KERNELS_BLAS CACHE)  # another Kokkos Kernels may have been given
  unset(ANNULUS_BLAS_IS_OPENBLAS CACHE)
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_LIBRARIES Kokkos::kokkoskernels)
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles("#include <KokkosKernels_config.h>\n#ifndef KOKKOSKERNELS_ENABLE_TPL_BLAS\n#error none\n#endif\nint main() {}"
    ANNULUS_KOKKOS_KERNELS_BLAS)
  # OpenBLAS says which of its kernels it runs (training/linalg/matmul.hpp).
  check_cxx_source_compiles("extern \"C\" char* openblas_get_corename(void);\nint main() { return *openblas_get_corename() == 0; }"
    ANNULUS_BLAS_IS_OPENBLAS)
  cmake_pop_check_state()
  if(ANNULUS_KOKKOS_KERNELS_BLAS)
    set(ANNULUS_BLAS_NAME "the BLAS of Kokkos Kernels")
    foreach(library IN ITEMS ARMPL MKL BLAS)
      if(TARGET Kokkos::${library})
        get_target_property(kernels_libraries Kokkos::${library} INTERFACE_LINK_LIBRARIES)
        string(REPLACE ";" " " ANNULUS_BLAS_NAME "${kernels_libraries}")
        break()
      endif()
    endforeach()
  else()
    set(ANNULUS_BLAS_NAME "the kernels of Kokkos Kernels")
    message(WARNING "the Kokkos Kernels at ${KokkosKernels_DIR} was built without a BLAS: matrix products on the host run at about half "
      "the speed. Give one with a BLAS (with Spack: kokkos-kernels +blas; by hand: -DKokkosKernels_ENABLE_TPL_BLAS=ON), ${kernels_fallback}")
  endif()
  message(STATUS "Kokkos Kernels ${KokkosKernels_VERSION} found at ${KokkosKernels_DIR}: products on the host run on ${ANNULUS_BLAS_NAME}")
else()
  find_path(ANNULUS_KOKKOS_KERNELS_INCLUDE KokkosBlas3_gemm.hpp
    HINTS ${ANNULUS_DEPS_DIR}/kokkos-kernels/include PATH_SUFFIXES kokkos-kernels
    DOC "Directory of the Kokkos Kernels 5.0.2 headers")
  if(NOT ANNULUS_KOKKOS_KERNELS_INCLUDE)
    message(FATAL_ERROR "no Kokkos Kernels: './annulus setup' fetches its headers into ${ANNULUS_DEPS_DIR}; or give an installed one, "
      "-DKokkosKernels_ROOT=DIR with its Kokkos as -DKokkos_ROOT=DIR (with modules or Spack: load kokkos and kokkos-kernels)")
  endif()
  find_path(ANNULUS_CBLAS_INCLUDE cblas.h
    PATH_SUFFIXES openblas-openmp x86_64-linux-gnu/openblas-openmp aarch64-linux-gnu/openblas-openmp openblas REQUIRED)
  find_library(ANNULUS_OPENBLAS openblas
    PATH_SUFFIXES openblas-openmp x86_64-linux-gnu/openblas-openmp aarch64-linux-gnu/openblas-openmp REQUIRED)
  set(ANNULUS_BLAS_IS_OPENBLAS ON)
  message(STATUS "Kokkos Kernels: the bundled headers at ${ANNULUS_KOKKOS_KERNELS_INCLUDE}: products on the host run on ${ANNULUS_OPENBLAS}")
endif()
