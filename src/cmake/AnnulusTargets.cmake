# How modules, programs and tests of Annulus are declared.

set(ANNULUS_TEST_TIMEOUT 300 CACHE STRING "Seconds after which a test counts as hanging")

add_library(annulus INTERFACE)  # the whole library; modules join below
add_library(annulus::annulus ALIAS annulus)
set_property(GLOBAL PROPERTY ANNULUS_MODULES annulus)

# annulus_add_module(NAME SOURCES file... [DEPENDS target...] [PRIVATE_DEPENDS target...])
# A folder of src/ and include/annulus/ as the static library annulus_NAME. DEPENDS is where the one-way order of
# modules is written down: docs/architecture.md draws it.
function(annulus_add_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(target annulus_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(annulus::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic)
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_PRIVATE_DEPENDS})
  annulus_sanitize(${target})
  target_link_libraries(annulus INTERFACE ${target})
  set_property(GLOBAL APPEND PROPERTY ANNULUS_MODULES ${target})
endfunction()

# Asserts and sanitizers of the cpu-debug preset.
function(annulus_sanitize target)
  if(ANNULUS_ASSERTS)
    target_compile_definitions(${target} PUBLIC $<BUILD_INTERFACE:ANNULUS_ENABLE_ASSERTS>)
  endif()
  if(ANNULUS_SANITIZE)
    target_compile_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${ANNULUS_SANITIZE}>
      $<BUILD_INTERFACE:-fno-omit-frame-pointer> $<BUILD_INTERFACE:-fno-sanitize-recover=undefined>)
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${ANNULUS_SANITIZE}>)
  endif()
endfunction()

# annulus_add_program(NAME SOURCES file... [DEPENDS target...])
function(annulus_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic)
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS})
  annulus_sanitize(${name})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# annulus_add_test(MODULE.NAME SOURCES file... DEPENDS target... [RANKS 1 2 3 4] [LABELS unit|slow] [ARGS ...] [PURE])
# One GoogleTest program. Without RANKS it runs once, labelled unit; with RANKS once a number under mpirun, as
# MODULE.NAME/npN, labelled mpi. PURE programs link neither Kokkos nor MPI. Cases whose name contains "Slow" run only
# in the extra entry MODULE.NAME/slow (label slow).
function(annulus_add_test name)
  cmake_parse_arguments(arg "PURE;SLOW" "" "SOURCES;DEPENDS;RANKS;LABELS;ARGS" ${ARGN})
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${arg_SOURCES})
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  if(arg_PURE)
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  elseif(arg_RANKS)
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} annulus_test_mpi_main)
  else()
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} annulus_test_main)
  endif()
  annulus_sanitize(${target})
  set(threads 2)
  if(arg_RANKS)
    foreach(ranks IN LISTS arg_RANKS)
      set(entry ${name}/np${ranks})
      add_test(NAME ${entry} COMMAND ${MPIEXEC_EXECUTABLE} ${ANNULUS_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
        $<TARGET_FILE:${target}> --gtest_filter=-*Slow* ${arg_ARGS})
      set_tests_properties(${entry} PROPERTIES LABELS "mpi;${arg_LABELS}" TIMEOUT ${ANNULUS_TEST_TIMEOUT} PROCESSORS 2
        ENVIRONMENT "OMP_NUM_THREADS=1;${ANNULUS_TEST_MPI_ENVIRONMENT}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${target} --gtest_filter=-*Slow* ${arg_ARGS})
    set_tests_properties(${name} PROPERTIES LABELS "unit;${arg_LABELS}" TIMEOUT ${ANNULUS_TEST_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "OMP_NUM_THREADS=${threads};${ANNULUS_TEST_ENVIRONMENT}")
  endif()
  if(arg_SLOW)
    add_test(NAME ${name}/slow COMMAND ${target} --gtest_filter=*Slow* ${arg_ARGS})
    set_tests_properties(${name}/slow PROPERTIES LABELS slow TIMEOUT 3600 PROCESSORS 2
      ENVIRONMENT "OMP_NUM_THREADS=${threads};${ANNULUS_TEST_ENVIRONMENT}")
  endif()
endfunction()
