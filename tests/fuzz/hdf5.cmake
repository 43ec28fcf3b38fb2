# Fuzz targets of the files in HDF5: tests/fuzz/CMakeLists.txt includes this.
annulus_add_fuzz_target(token_shard DEPENDS annulus_data)

annulus_add_fuzz_target(tensor_dump
  SOURCES ${PROJECT_SOURCE_DIR}/apps/diff/compare.cpp ${PROJECT_SOURCE_DIR}/apps/diff/report.cpp
          ${PROJECT_SOURCE_DIR}/apps/diff/tensor_file.cpp
  DEPENDS annulus_io fmt::fmt)

# Changed metadata is to get past its checksum: this preset does not check any.
if(ANNULUS_FUZZ)
  target_compile_definitions(annulus_io PRIVATE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
endif()
