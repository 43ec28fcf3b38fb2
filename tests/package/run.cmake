# Installs the build tree into a scratch prefix, and builds outside projects against it: by CMake the examples, of which it runs one, and a
# small program by pkg-config alone.
#   cmake <common.cmake> -DBUILD=<build tree> -DCXX=<compiler> -P run.cmake
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
if(EXISTS ${SCRATCH}/prefix/bin/annulus-plan)
  run(${SCRATCH}/prefix/bin/annulus-plan --version)  # through the launcher
  # What help texts and documentation name is there, and the launcher says where.
  set(documentation ${SCRATCH}/prefix/share/doc/annulus)
  foreach(file README.md docs/running.md docs/formats/configuration.md data/demo.toml data/clusters/h200.toml apps/examples/ring.cpp
          apps/tokens/pack_tokenizer_json.py ../../annulus/slurm/submit)
    if(NOT EXISTS ${documentation}/${file})
      message(FATAL_ERROR "the installation lacks ${documentation}/${file}")
    endif()
  endforeach()
  file(REAL_PATH ${documentation} real)
  expect(success "${real}" ${SCRATCH}/prefix/bin/annulus help)
  # Each program has a manual page and completion for bash.
  file(GLOB programs RELATIVE ${SCRATCH}/prefix/bin ${SCRATCH}/prefix/bin/annulus*)
  foreach(program IN LISTS programs)
    if(NOT EXISTS ${SCRATCH}/prefix/share/man/man1/${program}.1 OR NOT EXISTS ${SCRATCH}/prefix/share/bash-completion/completions/${program})
      message(FATAL_ERROR "the installation lacks a manual page or completion of ${program}")
    endif()
  endforeach()
  run(bash ${CMAKE_CURRENT_LIST_DIR}/completion.sh ${SCRATCH}/prefix/share/bash-completion/completions)
endif()
if(EXISTS ${SCRATCH}/prefix/lib/pkgconfig/annulus-attention.pc AND KOKKOS_BUILD)
  run(bash ${CMAKE_CURRENT_LIST_DIR}/pkgconfig.sh ${CXX} ${SCRATCH}/prefix ${CMAKE_CURRENT_LIST_DIR}/pkgconfig.cpp)
endif()
run(${CMAKE_COMMAND} -S ${ANNULUS}/apps/examples -B ${SCRATCH}/build ${common} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix ${kokkos})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target example_one_rank example_checkpoint)
run(${SCRATCH}/build/one_rank)
file(REMOVE_RECURSE ${SCRATCH})
