#include <gtest/gtest.h>

#include <string_view>

#include <annulus/io/crc32.hpp>

namespace annulus::io {
namespace {

std::uint32_t crc(std::string_view text, std::uint32_t previous = 0) {
  return crc32_of(std::span<const char>(text), previous);
}

TEST(Crc32, HasTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc("123456789"), 0xcbf43926u);
}

TEST(Crc32, GoesOnFromWhatCameBefore) {
  EXPECT_EQ(crc("56789", crc("1234")), crc("123456789"));
}

TEST(Crc32, EmptyDataChangesNothing) {
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc32({}, 0xcbf43926u), 0xcbf43926u);
}

TEST(Crc32, IsOverTheBytesOfElements) {
  const std::uint16_t values[] = {0x3231, 0x3433};  // "1234" little-endian
  EXPECT_EQ(crc32_of(std::span<const std::uint16_t>(values)), crc("1234"));
}

}  // namespace
}  // namespace annulus::io
