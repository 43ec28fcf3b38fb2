#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/kokkos/exponential.hpp"

namespace annulus {
namespace {

constexpr float float_infinity = std::numeric_limits<float>::infinity();
constexpr double bound = 1.5;  // units in the last place, as documented

/// Largest error, in units in the last place of e^x, over every `step`-th float whose e^x is a normal number.
double largest_error(std::uint32_t step) {
  constexpr std::uint64_t lanes = 1024;
  double worst = 0;
  std::array<float, lanes> x{}, y{};
  for (const float sign : {1.0f, -1.0f}) {
    const auto last = std::bit_cast<std::uint32_t>(sign > 0 ? 88.72283f : 87.33654f);
    for (std::uint64_t bits = 0; bits <= last; bits += step * lanes) {
      for (std::uint64_t i = 0; i < lanes; ++i)
        x[i] = sign * std::bit_cast<float>(
                          static_cast<std::uint32_t>(std::min<std::uint64_t>(bits + i * step, last)));
      for (std::uint64_t i = 0; i < lanes; ++i) y[i] = exponential(x[i]);
      for (std::uint64_t i = 0; i < lanes; ++i) {
        const double exact = std::exp(static_cast<double>(x[i]));
        const double error = std::abs(y[i] - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
        if (std::isnan(error)) return error;
        worst = std::max(worst, error);
      }
    }
  }
  return worst;
}

TEST(Exponential, ErrorIsWithinItsBound) {
  EXPECT_LE(largest_error(499), bound);
}

TEST(Exponential, ErrorIsWithinItsBoundForEveryFloatSlow) {
  EXPECT_LE(largest_error(1), bound);
}

TEST(Exponential, EndsOfTheRange) {
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-0.0f), 1.0f);
  EXPECT_LT(exponential(88.72283f), float_infinity);
  EXPECT_GE(exponential(-87.33654f), FLT_MIN);
  for (const float x : {88.72284f, 89.0f, 1000.0f, 1e30f, FLT_MAX, float_infinity})
    EXPECT_EQ(exponential(x), float_infinity) << x;
  for (const float x : {-87.33656f, -100.0f, -1000.0f, -1e30f, -FLT_MAX, -float_infinity})
    EXPECT_EQ(exponential(x), 0.0f) << x;
}

TEST(Exponential, EveryNanStaysOne) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0x7fffffffu, 0xffc12345u})
    EXPECT_TRUE(std::isnan(exponential(std::bit_cast<float>(bits)))) << std::hex << bits;
}

// Near 0, where a difference of exponentials would cancel, up to where ±1 is the nearest float, and beyond.
TEST(HyperbolicTangent, ErrorIsWithinItsBound) {
  for (const float sign : {1.0f, -1.0f})
    for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(float_infinity); bits += 9973) {
      const float x = sign * std::bit_cast<float>(bits), y = hyperbolic_tangent(x);
      const double exact = std::tanh(static_cast<double>(x));
      if (std::abs(exact) < FLT_MIN) continue;
      ASSERT_LE(std::abs(y - exact) / std::ldexp(1.0, std::ilogb(exact) - 23), 5) << x;
      ASSERT_LE(std::abs(y), 1.0f) << x;
    }
  EXPECT_EQ(hyperbolic_tangent(0.0f), 0.0f);
  EXPECT_EQ(hyperbolic_tangent(float_infinity), 1.0f);
  EXPECT_EQ(hyperbolic_tangent(-float_infinity), -1.0f);
  EXPECT_TRUE(std::isnan(hyperbolic_tangent(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace annulus
