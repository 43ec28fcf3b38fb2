# What the scripts of this folder share. Each is given -DANNULUS=<sources> -DSCRATCH=<folder> -DGENERATOR=<…>, and the Kokkos of the
# build: -DKOKKOS_BUILD=<its build folder>, or -DKokkos_DIR=<an installed one>.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGV}\n${output}")
  endif()
endfunction()

# expect(STATUS TEXT COMMAND…): the command ends with or without an error and says TEXT, however CMake breaks its lines.
function(expect status text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " flat "${output}")
  string(FIND "${flat}" "${text}" at)
  if((status STREQUAL "error" AND result EQUAL 0) OR (status STREQUAL "success" AND NOT result EQUAL 0) OR at EQUAL -1)
    message(FATAL_ERROR "expected ${status} and '${text}': ${ARGN}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
set(common -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -Wno-dev)
if(KOKKOS_BUILD)
  run(${CMAKE_COMMAND} --install ${KOKKOS_BUILD} --prefix ${SCRATCH}/kokkos)
  set(kokkos -DKokkos_ROOT=${SCRATCH}/kokkos)
else()
  set(kokkos -DKokkos_DIR=${Kokkos_DIR})
endif()
