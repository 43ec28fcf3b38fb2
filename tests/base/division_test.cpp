#include <annulus/base/division.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace annulus {
namespace {

TEST(Division, RoundsTowardsEitherSide) {
  for (std::int64_t b = 1; b <= 7; ++b)
    for (std::int64_t a = -20; a <= 20; ++a) {
      const std::int64_t low = floor_divide(a, b), high = ceil_divide(a, b), up = round_up(a, b);
      EXPECT_TRUE(low * b <= a && a < (low + 1) * b) << a << " / " << b;
      EXPECT_TRUE((high - 1) * b < a && a <= high * b) << a << " / " << b;
      EXPECT_EQ(up, high * b) << a << " to multiples of " << b;
    }
}

// The usual (a + b - 1) / b would overflow here.
TEST(Division, HoldsAtTheEndOfTheRange) {
  constexpr auto largest = std::numeric_limits<std::size_t>::max();
  static_assert(ceil_divide(largest, 2) == largest / 2 + 1);
  static_assert(ceil_divide(std::numeric_limits<std::int32_t>::max(), 4096) == 524288);
  EXPECT_EQ(round_up(std::size_t{0}, 64), 0u);
}

}  // namespace
}  // namespace annulus
