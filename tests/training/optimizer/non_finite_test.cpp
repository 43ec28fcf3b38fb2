#include <gtest/gtest.h>

#include <limits>

#include "support/arrays.hpp"
#include "training/optimizer/non_finite.hpp"

namespace annulus::optimizer {
namespace {

using test::TestExec;

constexpr float no_number = std::numeric_limits<float>::quiet_NaN();

/// What is found in `size` large numbers, of which some are replaced.
std::int64_t last_of(std::int64_t size, const std::vector<std::pair<std::int64_t, float>>& replaced) {
  std::vector<float> values(static_cast<std::size_t>(size), std::numeric_limits<float>::max());
  for (std::size_t i = 1; i < values.size(); i += 2) values[i] = -values[i];
  for (const auto& [place, value] : replaced) values[static_cast<std::size_t>(place)] = value;
  const TestExec exec;
  NonFinite<TestExec> non_finite(exec);
  non_finite.look(exec, 1000, test::uploaded(values));
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
}  // namespace annulus::optimizer
