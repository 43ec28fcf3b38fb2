#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstdlib>

#include "base/kokkos/execution/profile.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

std::string said_of(const char* value) {
  setenv("ANNULUS_PROFILE", value, 1);
  const std::string text = error_text([] { start_profile(); });
  unsetenv("ANNULUS_PROFILE");
  return text;
}

TEST(Profile, NothingIsAsked) {
  EXPECT_EQ(error_text([] { start_profile(); }), "no error");
  EXPECT_EQ(said_of(""), "no error");
}

TEST(Profile, UnknownToolsAreErrors) {
  EXPECT_THAT(said_of("nvtrx"), testing::HasSubstr("ANNULUS_PROFILE='nvtrx' is not known: set it to nvtx"));
}

#ifndef KOKKOS_ENABLE_CUDA
TEST(Profile, NvtxNeedsABuildForGpus) {
  EXPECT_THAT(said_of("nvtx"), testing::HasSubstr("this build has no NVTX"));
}
#endif

}  // namespace
}  // namespace annulus::test
