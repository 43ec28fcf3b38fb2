// A key of the configuration (docs/contributing.md): CMakeLists.txt adds a member to config.hpp and a row to
// config_table.cpp, as a newcomer would, and this test is compiled with them.
#include <gtest/gtest.h>

#include "training/run/config/config_table.hpp"

namespace annulus::training {
namespace {

TEST(KeyExample, AMemberAndARowMakeAKey) {
  Config config;
  EXPECT_EQ(config.train.z_loss, 0.5);
  const Key* found = nullptr;
  for (const Key& key : config_table())
    if (std::string_view(key.name) == "train.z_loss") found = &key;
  ASSERT_NE(found, nullptr);
  *std::get<double*>(found->reference(config)) = 0.25;  // as parsing does
  EXPECT_EQ(config.train.z_loss, 0.25);
  EXPECT_NE(suggested_key("train.z_los").find("train.z_loss"), std::string::npos);
}

}  // namespace
}  // namespace annulus::training
