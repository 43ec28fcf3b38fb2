# Builds a stand-in for an installed Kokkos Kernels, and shows which Kokkos Kernels builds of Annulus take beside it.
#   cmake <common.cmake> -DHEADERS=… -DCBLAS=… -DBLAS=… [-DMATMUL=ON: builds and runs the tests of products with it, in minutes] -P run.cmake
set(here ${CMAKE_CURRENT_LIST_DIR})
include(${here}/../common.cmake)
function(choose status text)
  file(REMOVE_RECURSE ${SCRATCH}/choice)
  expect(${status} "${text}" ${CMAKE_COMMAND} -S ${here}/choice -B ${SCRATCH}/choice ${common} -DANNULUS=${ANNULUS}
    -DANNULUS_KOKKOS_KERNELS_INCLUDE=${HEADERS} -DANNULUS_CBLAS_INCLUDE=${CBLAS} -DANNULUS_OPENBLAS=${BLAS} ${ARGN})
endfunction()
# install_kernels(PREFIX OPTIONS…)
function(install_kernels prefix)
  file(REMOVE_RECURSE ${SCRATCH}/kernels-build)
  run(${CMAKE_COMMAND} -S ${here} -B ${SCRATCH}/kernels-build ${common} ${kokkos} -DHEADERS=${HEADERS} -DBLAS=${BLAS} -DCBLAS=${CBLAS}
    -DSOURCES=${ANNULUS}/src/training/linalg/kokkos_kernels -DCMAKE_INSTALL_PREFIX=${prefix} ${ARGN})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/kernels-build --target install)
endfunction()

install_kernels(${SCRATCH}/kernels)
set(kernels -DKokkosKernels_ROOT=${SCRATCH}/kernels)

if(MATMUL)
  run(${CMAKE_COMMAND} -S ${ANNULUS} -B ${SCRATCH}/annulus ${common} ${kokkos} ${kernels} -DANNULUS_APPS=OFF -DCMAKE_BUILD_TYPE=Release)
  run(${CMAKE_COMMAND} --build ${SCRATCH}/annulus --target test_linalg_matmul)
  run(${SCRATCH}/annulus/bin/test_linalg_matmul)
  file(REMOVE_RECURSE ${SCRATCH})
  return()
endif()

choose(success "Kokkos Kernels 5.0.2 found at ${SCRATCH}/kernels/lib/cmake/KokkosKernels: products on the host run on ${BLAS}"
  ${kokkos} ${kernels} -DPACKAGE=${SCRATCH}/package)
expect(success "Kokkos Kernels: ${SCRATCH}/kernels/lib/cmake/KokkosKernels" ${CMAKE_COMMAND} -S ${here}/outside -B ${SCRATCH}/outside
  ${common} -DAnnulus_DIR=${SCRATCH}/package)
choose(success "installed: ON, OpenBLAS: 1" ${kokkos} -DCMAKE_PREFIX_PATH=${SCRATCH}/kernels)
choose(success "Kokkos Kernels: the bundled headers at ${HEADERS}" ${kokkos})
choose(success "Kokkos Kernels: the bundled headers at ${HEADERS}" ${kokkos} ${kernels} -DANNULUS_KOKKOS_KERNELS=headers)
choose(success "Kokkos Kernels: the bundled headers at ${HEADERS}" -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON)
choose(error "give that Kokkos too, -DKokkos_ROOT=DIR" -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON ${kernels})
choose(error "no Kokkos Kernels was found at ${SCRATCH}/nowhere" ${kokkos} -DKokkosKernels_ROOT=${SCRATCH}/nowhere)
choose(error "no Kokkos Kernels was found at CMAKE_PREFIX_PATH" ${kokkos} -DANNULUS_KOKKOS_KERNELS=installed)
choose(error "no Kokkos Kernels: './annulus setup' fetches its headers" ${kokkos} -DANNULUS_KOKKOS_KERNELS_INCLUDE=NOTFOUND
  -DANNULUS_DEPS_DIR=${SCRATCH}/nowhere)
choose(error "give automatic, installed or headers" ${kokkos} -DANNULUS_KOKKOS_KERNELS=no)

install_kernels(${SCRATCH}/old -DPACKAGE_VERSION=4.7.1)
choose(error "is version 4.7.1, and Annulus needs 5.0 or newer" ${kokkos} -DKokkosKernels_ROOT=${SCRATCH}/old)
install_kernels(${SCRATCH}/slow -DWITH_BLAS=OFF)
choose(success "was built without a BLAS: matrix products on the host run at about half the speed" ${kokkos}
  -DKokkosKernels_ROOT=${SCRATCH}/slow)
file(REMOVE_RECURSE ${SCRATCH})
