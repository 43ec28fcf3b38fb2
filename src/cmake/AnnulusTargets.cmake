# How modules, programs and tests of Annulus are declared.

set(ANNULUS_WARNINGS -Wall -Wextra -Wpedantic)
if(ANNULUS_CUDA)
  # What nvcc makes of a source is no standard C++, and its designated initializers are lists.
  list(REMOVE_ITEM ANNULUS_WARNINGS -Wpedantic)
  list(APPEND ANNULUS_WARNINGS -Wno-missing-field-initializers)
endif()

# Neither changes a value. Loops around square roots and choices become vector code only where nobody wants errno or
# floating-point exceptions of them.
set(ANNULUS_ARITHMETIC -fno-math-errno -fno-trapping-math)

# Sources of a target that are compiled as one where ANNULUS_UNITY says so: most of a file's time goes to headers that its
# neighbours read too, and to what both take from them. Names in unnamed namespaces are therefore unique in their folder.
# annulus_unite(TARGET [SOURCES AT ONCE]): eight where code is most of the work (kernels, tests), so that
# several processors share it.
function(annulus_unite target)
  if(ANNULUS_UNITY)
    set(sources 20)
    if(ARGC GREATER 1)
      set(sources ${ARGV1})
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
    # GCC takes a source that another one includes for a header, where unnamed namespaces would be a mistake.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# annulus_optimise_less(TARGET [LEVEL]). What computes nothing, or little, is ready sooner with less optimisation. Not for what rounds:
# without -O2, GCC joins no product with a sum.
function(annulus_optimise_less target)
  if(ANNULUS_UNITY AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(level -O1)
    if(ARGC GREATER 1)
      set(level ${ARGV1})
    endif()
    target_compile_options(${target} PRIVATE ${level})
    # GCC compiles what reads a precompiled header at the level of that header, and so would leave this one aside.
    get_target_property(on_kokkos ${target} ANNULUS_ON_KOKKOS)
    if(on_kokkos)
      set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endif()
  endif()
endfunction()

# Large headers are read once, those of tests (tests/CMakeLists.txt) and Kokkos', unless nvcc reads them, or a cache of compilations
# (ccache), which takes results of other folders only without them.
if(ANNULUS_UNITY AND NOT ANNULUS_CUDA AND NOT ANNULUS_HIP AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(ANNULUS_PRECOMPILED_HEADERS ON)
endif()
# `from` is the target that has them.
function(annulus_precompile_headers target from)
  if(ANNULUS_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# Modules that stand on Kokkos are compiled alike, so that one precompiled header, that of core, serves all.
function(annulus_precompile_kokkos target)
  foreach(dependency IN LISTS ARGN)
    if(dependency STREQUAL "Kokkos::kokkos")
      set(on_kokkos ON)
    elseif(TARGET ${dependency})
      get_target_property(on_kokkos ${dependency} ANNULUS_ON_KOKKOS)
    endif()
    if(on_kokkos)
      set_target_properties(${target} PROPERTIES ANNULUS_ON_KOKKOS ON)
      if(NOT ANNULUS_PRECOMPILED_HEADERS)
      elseif(TARGET annulus_kokkos AND NOT target STREQUAL "annulus_kokkos")
        annulus_precompile_headers(${target} annulus_kokkos)
      else()
        target_precompile_headers(${target} PRIVATE <Kokkos_Core.hpp>)
      endif()
      return()
    endif()
  endforeach()
endfunction()

set(ANNULUS_TEST_TIMEOUT 900 CACHE STRING "Seconds after which a test counts as hanging")

add_library(annulus INTERFACE)  # the whole library; components join below
add_library(annulus::annulus ALIAS annulus)

# annulus_add_component(NAME [component…]): what users ask for by name (find_package(Annulus COMPONENTS NAME), the target annulus::NAME),
# with the components it stands on. The modules declared after it, in the same CMakeLists.txt, are its parts.
function(annulus_add_component name)
  add_library(annulus_component_${name} INTERFACE)
  add_library(annulus::${name} ALIAS annulus_component_${name})
  set_target_properties(annulus_component_${name} PROPERTIES EXPORT_NAME ${name})
  list(TRANSFORM ARGN PREPEND annulus_component_ OUTPUT_VARIABLE below)
  target_link_libraries(annulus_component_${name} INTERFACE ${below})
  target_link_libraries(annulus INTERFACE annulus_component_${name})
  set_property(GLOBAL APPEND PROPERTY ANNULUS_COMPONENTS ${name})
  set(ANNULUS_COMPONENT ${name} PARENT_SCOPE)
endfunction()

# annulus_add_module(NAME SOURCES file... [DEPENDS target...] [PRIVATE_DEPENDS target...])
# A folder of src/ and include/annulus/ as the static library annulus_NAME. DEPENDS is where the one-way order of
# modules is written down: docs/architecture.md draws it.
function(annulus_add_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(target annulus_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  annulus_unite(${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME module_${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${ANNULUS_WARNINGS} ${ANNULUS_ARITHMETIC})
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_PRIVATE_DEPENDS})
  annulus_sanitize(${target})
  annulus_precompile_kokkos(${target} ${arg_DEPENDS})
  target_link_libraries(annulus_component_${ANNULUS_COMPONENT} INTERFACE ${target})
  set_property(GLOBAL APPEND PROPERTY ANNULUS_MODULES_OF_${ANNULUS_COMPONENT} ${name})
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

# annulus_add_program(NAME SOURCES file... [DEPENDS target...] [LIGHT]). LIGHT: libraries alone compute.
function(annulus_add_program name)
  cmake_parse_arguments(arg "LIGHT" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  annulus_unite(${name})
  target_compile_options(${name} PRIVATE ${ANNULUS_WARNINGS})
  if(arg_LIGHT)
    annulus_optimise_less(${name})
  endif()
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS})
  annulus_sanitize(${name})
  # Where CUDA and NCCL lie the system need not look by itself.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  set_property(GLOBAL APPEND PROPERTY ANNULUS_PROGRAMS ${name})
endfunction()

# annulus_add_test(MODULE.NAME SOURCES file... DEPENDS target... [RANKS 1 2 3 4] [LABELS unit|slow] [ARGS ...] [PURE]
#   [DEVICE file...] [DEVICE_SHARDS n] [THREADS n] [COST n] [COMPUTES])
# One GoogleTest program. Without RANKS it runs once, labelled unit; with RANKS once a number under mpirun, as
# MODULE.NAME/npN, labelled mpi. PURE programs link neither Kokkos nor MPI. Cases whose name ends in "Slow", and suites instantiated under that name, run only
# in the extra entry MODULE.NAME/slow (label slow). DEVICE names the sources whose test::TestExec may be a device: the
# presets cuda and hip compile them a second time, as MODULE.NAME.gpu, labelled gpu; with DEVICE_SHARDS as n
# entries MODULE.NAME.gpu/1of<n> … that share its cases. QUICK_DEVICE_RANKS: of RANKS those that a quick run on one or two GPUs
# has; the others, whose ranks take turns on a GPU, are labelled slow there. THREADS of a kernel: 2; 1 suits tests whose
# ranks are more threads than a machine has cores. Under mpirun it is 1. COMPUTES: loops of its own or of headers take long in a PURE test, and are optimised; all other PURE ones are compiled sooner
# without that. COST: seconds of long ones, which start before the others, so that none is alone at the end.
function(annulus_add_test name)
  cmake_parse_arguments(arg "PURE;SLOW;ON_DEVICE;COMPUTES" "THREADS;COST;SHARDS;DEVICE_SHARDS" "SOURCES;DEPENDS;RANKS;QUICK_DEVICE_RANKS;LABELS;ARGS;DEVICE" ${ARGN})
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${arg_SOURCES})
  annulus_unite(${target} 8)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  if(arg_PURE AND NOT arg_COMPUTES)
    annulus_optimise_less(${target} -O0)
    annulus_precompile_headers(${target} annulus_test_pure_headers)
  else()
    annulus_optimise_less(${target})
    if(NOT arg_PURE)
      annulus_precompile_headers(${target} annulus_test_headers)
    endif()
  endif()
  if(arg_PURE)
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  elseif(arg_RANKS)
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} annulus_test_mpi_main)
  else()
    target_link_libraries(${target} PRIVATE ${arg_DEPENDS} annulus_test_main)
  endif()
  annulus_sanitize(${target})
  if(TARGET annulus_patient_yield)  # their environment names it
    add_dependencies(${target} annulus_patient_yield)
  endif()
  set(slow *Slow:Slow/*)  # a filter of GoogleTest
  set(kind unit)
  if(arg_RANKS)
    set(kind mpi)
  endif()
  if(arg_ON_DEVICE)
    target_compile_definitions(${target} PRIVATE ANNULUS_TEST_ON_DEVICE)
    set(kind gpu)
  endif()
  set(threads 2)
  if(arg_THREADS)
    set(threads ${arg_THREADS})
  endif()
  if(arg_RANKS)
    foreach(ranks IN LISTS arg_RANKS)
      set(entry ${name}/np${ranks})
      set(label ${kind})
      if(arg_ON_DEVICE AND arg_QUICK_DEVICE_RANKS AND NOT ranks IN_LIST arg_QUICK_DEVICE_RANKS)
        set(label slow)
      endif()
      add_test(NAME ${entry} COMMAND ${MPIEXEC_EXECUTABLE} ${ANNULUS_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
        $<TARGET_FILE:${target}> --gtest_filter=-${slow} ${arg_ARGS})
      set_tests_properties(${entry} PROPERTIES LABELS "${label};${arg_LABELS}" TIMEOUT ${ANNULUS_TEST_TIMEOUT}
        ENVIRONMENT "OMP_NUM_THREADS=1;${ANNULUS_TEST_MPI_ENVIRONMENT}")
    endforeach()
  elseif(arg_SHARDS)
    math(EXPR last "${arg_SHARDS} - 1")
    foreach(shard RANGE ${last})
      math(EXPR number "${shard} + 1")
      set(entry ${name}/${number}of${arg_SHARDS})
      add_test(NAME ${entry} COMMAND ${target} --gtest_filter=-${slow} ${arg_ARGS})
      set_tests_properties(${entry} PROPERTIES LABELS "${kind};${arg_LABELS}" TIMEOUT ${ANNULUS_TEST_TIMEOUT}
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard};OMP_NUM_THREADS=${threads};${ANNULUS_TEST_ENVIRONMENT}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${target} --gtest_filter=-${slow} ${arg_ARGS})
    set_tests_properties(${name} PROPERTIES LABELS "${kind};${arg_LABELS}" TIMEOUT ${ANNULUS_TEST_TIMEOUT}
      ENVIRONMENT "OMP_NUM_THREADS=${threads};${ANNULUS_TEST_ENVIRONMENT}")
  endif()
  if(arg_COST)
    get_property(entries DIRECTORY PROPERTY TESTS)
    list(FILTER entries INCLUDE REGEX "^${name}(/|$)")
    set_tests_properties(${entries} PROPERTIES COST ${arg_COST})
  endif()
  if(arg_SLOW)
    add_test(NAME ${name}/slow COMMAND ${target} --gtest_filter=${slow} ${arg_ARGS})
    set_tests_properties(${name}/slow PROPERTIES LABELS slow TIMEOUT 3600
      ENVIRONMENT "OMP_NUM_THREADS=${threads};${ANNULUS_TEST_ENVIRONMENT}")
  endif()
  if(arg_ON_DEVICE)
    # One process a GPU, where ctest is told the GPUs (--resource-spec-file): a GPU gives processes turns of
    # milliseconds, so that six with small kernels took more than three times as long as one after the other.
    # Ranks take all GPUs.
    get_property(entries DIRECTORY PROPERTY TESTS)
    list(FILTER entries INCLUDE REGEX "^${name}(/|$)")
    if(arg_RANKS)
      set_tests_properties(${entries} PROPERTIES RUN_SERIAL ON)
    else()
      set_tests_properties(${entries} PROPERTIES RESOURCE_GROUPS gpus:1)
    endif()
  endif()
  if(arg_DEVICE AND (ANNULUS_CUDA OR ANNULUS_HIP))
    set(with_slow)
    if(arg_SLOW)
      set(with_slow SLOW)
    endif()
    annulus_add_test(${name}.gpu ON_DEVICE ${with_slow} SOURCES ${arg_DEVICE} DEPENDS ${arg_DEPENDS} RANKS ${arg_RANKS} QUICK_DEVICE_RANKS ${arg_QUICK_DEVICE_RANKS} THREADS ${arg_THREADS}
      SHARDS ${arg_DEVICE_SHARDS})
  endif()
endfunction()

# annulus_add_emulated_test(NAME FILTER): of the test NAME the cases of a filter of GoogleTest, as NAME/emulated, labelled emulated. For
# cross-compiled builds: in an emulator, which takes some thirty times as long as a processor, the whole test would take too long.
function(annulus_add_emulated_test name filter)
  if(CMAKE_CROSSCOMPILING)
    string(REPLACE "." "_" target test_${name})
    add_test(NAME ${name}/emulated COMMAND ${target} --gtest_filter=${filter})
    set_tests_properties(${name}/emulated PROPERTIES LABELS emulated TIMEOUT ${ANNULUS_TEST_TIMEOUT} PROCESSORS 1
      ENVIRONMENT "OMP_NUM_THREADS=1;${ANNULUS_TEST_ENVIRONMENT}")
  endif()
endfunction()
