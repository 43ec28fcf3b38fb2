#include <annulus/base/dtype.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace annulus {
namespace {

/// A 16-bit format, for a reference that is formed literally from its definition, in double.
struct Format {
  int fraction_bits, smallest_exponent;  // of normal numbers
  double overflow;                       // first power of two that is too large
};

template <class T>
constexpr Format format_of;
template <>
constexpr Format format_of<bfloat16> = {7, -126, 0x1p128};
template <>
constexpr Format format_of<float16> = {10, -14, 0x1p16};

template <class T>
constexpr std::uint16_t infinity_bits;
template <>
constexpr std::uint16_t infinity_bits<bfloat16> = 0x7f80;
template <>
constexpr std::uint16_t infinity_bits<float16> = 0x7c00;

/// The value of a bit pattern: sign · significand · 2^exponent.
template <class T>
double decode(std::uint16_t bits) {
  const Format format = format_of<T>;
  const int exponent = (bits & 0x7fff) >> format.fraction_bits,
            fraction = bits & ((1 << format.fraction_bits) - 1);
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if ((bits & 0x7fff) >= infinity_bits<T>)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return sign *
         std::ldexp(significand, std::max(exponent, 1) - 1 + format.smallest_exponent - format.fraction_bits);
}

/// `value` rounded to the nearest representable number, ties to even (the default of nearbyint).
template <class T>
double round_to(double value) {
  const Format format = format_of<T>;
  if (value == 0 || !std::isfinite(value)) return value;
  const double spacing =
      std::ldexp(1.0, std::max(std::ilogb(value), format.smallest_exponent) - format.fraction_bits);
  const double rounded = std::nearbyint(value / spacing) * spacing;
  return std::abs(rounded) >= format.overflow ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                              : rounded;
}

template <class T>
void expect_rounds(float value) {
  const T got(value);
  const double wanted = round_to<T>(value);
  EXPECT_EQ(static_cast<double>(static_cast<float>(got)), wanted) << std::hexfloat << value;
  EXPECT_EQ((got.bits & 0x8000) != 0, std::signbit(value)) << std::hexfloat << value;
}

template <class T>
class Float16 : public testing::Test {};
using Types = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Float16, Types);

TYPED_TEST(Float16, EveryPatternDecodesAndComesBack) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    TypeParam number;
    number.bits = static_cast<std::uint16_t>(pattern);
    const float value = number;
    const double wanted = decode<TypeParam>(number.bits);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(value)) << pattern;
      const TypeParam back(value);
      EXPECT_TRUE(std::isnan(static_cast<float>(back))) << pattern;
      EXPECT_EQ(back.bits & 0x8000, number.bits & 0x8000) << pattern;
    } else {
      ASSERT_EQ(static_cast<double>(value), wanted) << pattern;
      ASSERT_EQ(std::signbit(value), (pattern & 0x8000) != 0) << pattern;
      ASSERT_EQ(TypeParam(value).bits, number.bits) << pattern;
    }
  }
}

/// Between any two neighbours: the middle goes to the even one, the floats beside it to the nearer one.
TYPED_TEST(Float16, EveryMiddleGoesToEven) {
  for (std::uint16_t low = 0; low < infinity_bits<TypeParam>; ++low) {
    const std::uint16_t high = static_cast<std::uint16_t>(low + 1), even = low % 2 == 0 ? low : high;
    const double above =
        high == infinity_bits<TypeParam> ? format_of<TypeParam>.overflow : decode<TypeParam>(high);
    const double exact = (decode<TypeParam>(low) + above) / 2;
    const float middle = static_cast<float>(exact);
    ASSERT_EQ(static_cast<double>(middle), exact);
    for (const float sign : {1.0f, -1.0f}) {
      const int negative = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(TypeParam(sign * middle).bits, negative | even) << low;
      ASSERT_EQ(TypeParam(sign * std::nextafter(middle, 0.0f)).bits, negative | low) << low;
      ASSERT_EQ(TypeParam(sign * std::nextafter(middle, INFINITY)).bits, negative | high) << low;
    }
  }
}

TYPED_TEST(Float16, FloatsOfAllMagnitudesRoundToNearest) {
  for (std::uint64_t word = 0; word <= 0xffffffffu;
       word += 12289) {  // a prime: no bit of the float stands still
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(word));
    if (!std::isnan(value)) expect_rounds<TypeParam>(value);
  }
  for (const float value :
       {0.0f, -0.0f, 1.0f, 65504.0f, 65519.99f, 65520.0f, std::numeric_limits<float>::max(),
        std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    expect_rounds<TypeParam>(value);
}

TYPED_TEST(Float16, NansOfFloatStayNans) {
  for (const std::uint32_t word :
       {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const TypeParam number(std::bit_cast<float>(word));
    EXPECT_TRUE(std::isnan(static_cast<float>(number))) << word;
    EXPECT_EQ((number.bits & 0x8000) != 0, (word >> 31) != 0) << word;
  }
}

}  // namespace
}  // namespace annulus
