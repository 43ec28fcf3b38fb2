# Installs the build tree into a scratch prefix, builds the outside project against it and runs it.
#   cmake -DBUILD=<build tree> -DSOURCE=<this folder> -DSCRATCH=<folder> -DGENERATOR=<…> [-DKokkos_ROOT=…] -P run.cmake
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGV}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
if(EXISTS ${SCRATCH}/prefix/bin/annulus-plan)
  run(${SCRATCH}/prefix/bin/annulus-plan --version)  # through the launcher
  # What help texts and documentation name is there, and the launcher says where.
  set(documentation ${SCRATCH}/prefix/share/doc/annulus)
  foreach(file README.md docs/running.md docs/formats/configuration.md data/demo.toml data/clusters/h200.toml tests/package/main.cpp)
    if(NOT EXISTS ${documentation}/${file})
      message(FATAL_ERROR "the installation lacks ${documentation}/${file}")
    endif()
  endforeach()
  execute_process(COMMAND ${SCRATCH}/prefix/bin/annulus help OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  file(REAL_PATH ${documentation} real)
  string(FIND "${output}" "${real}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "annulus help does not say where the documentation is: ${output}")
  endif()
endif()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix ${OPTIONS})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/outside)
file(REMOVE_RECURSE ${SCRATCH})
