#include <annulus/optim/non_finite.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/exec.hpp"

namespace annulus::optim {
namespace {

using test::TestExec;

constexpr float no_number = std::numeric_limits<float>::quiet_NaN();

/// What is found in `size` large numbers, of which some are replaced.
std::int64_t last_of(std::int64_t size, const std::vector<std::pair<std::int64_t, float>>& replaced) {
  const Array1<float, TestExec> values("values", size);
  const auto host = Kokkos::create_mirror_view(values);
  for (std::int64_t i = 0; i < size; ++i)
    host(i) = (i % 2 == 0 ? 1.0f : -1.0f) * std::numeric_limits<float>::max();
  for (const auto& [place, value] : replaced) host(place) = value;
  Kokkos::deep_copy(values, host);
  const TestExec exec;
  NonFinite<TestExec> non_finite(exec);
  non_finite.look(exec, 1000, values);
  return non_finite.last(exec);
}

TEST(NonFinite, FindsTheLastElement) {
  for (const std::int64_t size : {1, 7, 16384, 16385, 100001}) {
    EXPECT_EQ(last_of(size, {}), -1);
    for (const float value :
         {no_number, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(last_of(size, {{0, value}}), 1000);
      EXPECT_EQ(last_of(size, {{size - 1, value}}), 1000 + size - 1);
      EXPECT_EQ(last_of(size, {{0, value}, {size / 2, -value}}), 1000 + size / 2);
    }
  }
  EXPECT_EQ(last_of(0, {}), -1);
}

TEST(NonFinite, RemembersUntilItIsReset) {
  const TestExec exec;
  NonFinite<TestExec> non_finite(exec);
  const Array1<float, TestExec> good("good", 5), bad("bad", 5);
  Kokkos::deep_copy(bad, no_number);
  non_finite.look(exec, 50, good);
  EXPECT_EQ(non_finite.last(exec), -1);
  non_finite.look(exec, 10, bad);
  non_finite.look(exec, 0, bad);
  non_finite.look(exec, 50, good);
  EXPECT_EQ(non_finite.last(exec), 14);
  non_finite.reset(exec);
  EXPECT_EQ(non_finite.last(exec), -1);
}

}  // namespace
}  // namespace annulus::optim
