# Installs the build tree into a scratch prefix, and builds an outside project against it, the examples, of which it runs one.
#   cmake <common.cmake> -DBUILD=<build tree> -P run.cmake
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
if(EXISTS ${SCRATCH}/prefix/bin/annulus-plan)
  run(${SCRATCH}/prefix/bin/annulus-plan --version)  # through the launcher
  # What help texts and documentation name is there, and the launcher says where.
  set(documentation ${SCRATCH}/prefix/share/doc/annulus)
  foreach(file README.md docs/running.md docs/formats/configuration.md data/demo.toml data/clusters/h200.toml apps/examples/ring.cpp)
    if(NOT EXISTS ${documentation}/${file})
      message(FATAL_ERROR "the installation lacks ${documentation}/${file}")
    endif()
  endforeach()
  file(REAL_PATH ${documentation} real)
  expect(success "${real}" ${SCRATCH}/prefix/bin/annulus help)
endif()
run(${CMAKE_COMMAND} -S ${ANNULUS}/apps/examples -B ${SCRATCH}/build ${common} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix ${kokkos})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target example_one_rank example_checkpoint)
run(${SCRATCH}/build/one_rank)
file(REMOVE_RECURSE ${SCRATCH})
