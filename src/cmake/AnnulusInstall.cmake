# `cmake --install`: libraries, headers, programs, Slurm templates and the CMake package (find_package(Annulus)). A Kokkos
# that was built as a part of this tree is installed beside it by its own rules.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Annulus)
get_property(modules GLOBAL PROPERTY ANNULUS_MODULES)
install(TARGETS ${modules} EXPORT AnnulusTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT AnnulusTargets NAMESPACE annulus:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/annulus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/annulus/slurm USE_SOURCE_PERMISSIONS)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/AnnulusConfig.cmake.in ${PROJECT_BINARY_DIR}/AnnulusConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/AnnulusConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/AnnulusConfig.cmake ${PROJECT_BINARY_DIR}/AnnulusConfigVersion.cmake DESTINATION ${package_dir})
