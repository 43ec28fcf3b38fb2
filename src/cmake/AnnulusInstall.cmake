# `cmake --install`: libraries and headers of the components, the CMake package (find_package(Annulus)) and pkg-config files, programs with
# manual pages and completion for bash, documentation, configurations, cluster files and Slurm templates. A Kokkos that was built as a part of this tree is installed beside it by its own rules.
#
# Programs lie in libexec/annulus/cpu, libexec/annulus/cuda or libexec/annulus/hip, so that all builds fit into one prefix; in bin are the
# launcher `annulus`, which picks the one that a machine can run, and links to it by the names of the programs. The component
# `programs` is these, with documentation and examples.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(PkgConfig)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Annulus)
set(headers ${PROJECT_SOURCE_DIR}/include/annulus)
get_property(ANNULUS_COMPONENTS GLOBAL PROPERTY ANNULUS_COMPONENTS)
foreach(component IN LISTS ANNULUS_COMPONENTS)
  get_property(modules GLOBAL PROPERTY ANNULUS_MODULES_OF_${component})
  list(TRANSFORM modules PREPEND annulus_ OUTPUT_VARIABLE targets)
  install(TARGETS annulus_component_${component} ${targets} EXPORT AnnulusTargets-${component}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT AnnulusTargets-${component} NAMESPACE annulus:: DESTINATION ${package_dir})
  install(FILES ${headers}/${component}.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/annulus)
  install(DIRECTORY ${headers}/${component} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/annulus)
endforeach()
install(DIRECTORY ${headers}/base ${headers}/cluster DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/annulus)
annulus_install_pkgconfig()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/annulus/slurm USE_SOURCE_PERMISSIONS COMPONENT programs)

# What the documentation and the help texts name, under the same paths as here: docs/, data/ and the examples.
set(documentation ${CMAKE_INSTALL_DATADIR}/doc/annulus)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${documentation} COMPONENT programs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/data DESTINATION ${documentation} COMPONENT programs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/examples DESTINATION ${documentation}/apps COMPONENT programs)
install(PROGRAMS ${PROJECT_SOURCE_DIR}/apps/tokens/pack_tokenizer_json.py DESTINATION ${documentation}/apps/tokens COMPONENT programs)

get_property(programs GLOBAL PROPERTY ANNULUS_PROGRAMS)
if(programs)
  set(libexec ${CMAKE_INSTALL_LIBEXECDIR}/annulus)
  file(RELATIVE_PATH ANNULUS_DOC_FROM_LIBEXEC /prefix/${libexec} /prefix/${documentation})
  set(build cpu)
  if(ANNULUS_CUDA)
    set(build cuda)
  elseif(ANNULUS_HIP)
    set(build hip)
  endif()
  install(TARGETS ${programs} RUNTIME DESTINATION ${libexec}/${build} COMPONENT programs)
  file(RELATIVE_PATH ANNULUS_LIBEXEC_FROM_BIN /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${libexec})
  configure_file(${PROJECT_SOURCE_DIR}/src/driver/installed.sh.in ${PROJECT_BINARY_DIR}/driver/annulus @ONLY)
  install(FILES ${PROJECT_SOURCE_DIR}/src/driver/launch.sh DESTINATION ${libexec} COMPONENT programs)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/driver/annulus DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  foreach(program IN LISTS programs)
    file(CREATE_LINK annulus ${PROJECT_BINARY_DIR}/driver/${program} SYMBOLIC)
    install(FILES ${PROJECT_BINARY_DIR}/driver/${program} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endforeach()
  include(Manuals)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/AnnulusConfig.cmake.in ${PROJECT_BINARY_DIR}/AnnulusConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/AnnulusConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/AnnulusConfig.cmake ${PROJECT_BINARY_DIR}/AnnulusConfigVersion.cmake DESTINATION ${package_dir})

if(PROJECT_IS_TOP_LEVEL)
  include(Packages)
endif()
