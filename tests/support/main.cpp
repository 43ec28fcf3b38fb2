// main of test programs that are one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <cstdlib>

namespace {

/// The GPU that CTest gave this test (RESOURCE_GROUPS gpus:1; the variable is "id:1,slots:1"), or −1: a plain
/// run, on the first GPU.
int gpu_from_ctest() {
  const char* given = std::getenv("CTEST_RESOURCE_GROUP_0_GPUS");
  int gpu = -1;
  if (given == nullptr || std::sscanf(given, "id:%d,", &gpu) != 1) return -1;
  return gpu;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  Kokkos::InitializationSettings settings;
  if (const int gpu = gpu_from_ctest(); gpu >= 0) settings.set_device_id(gpu);
  Kokkos::ScopeGuard kokkos(settings);
  return RUN_ALL_TESTS();
}
