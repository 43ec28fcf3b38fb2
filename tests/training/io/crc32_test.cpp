#include <gtest/gtest.h>

#include <algorithm>

#include "training/io/crc32.hpp"

namespace annulus::io {
namespace {

std::uint32_t crc(std::string_view text, std::uint32_t previous = 0) {
  return crc32_of(std::span<const char>(text), previous);
}

TEST(Crc32, HasTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc("123456789"), 0xcbf43926u);
}

TEST(Crc32, EmptyDataChangesNothing) {
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc32({}, 0xcbf43926u), 0xcbf43926u);
}

TEST(Crc32, IsOverTheBytesOfElements) {
  const std::uint16_t values[] = {0x3231, 0x3433};  // "1234" little-endian
  EXPECT_EQ(crc32_of(std::span<const std::uint16_t>(values)), crc("1234"));
}

// Large arrays are cut into parts for several threads.
TEST(Crc32, OfALargeArrayIsThatOfItsPiecesOneAfterTheOther) {
  std::vector<std::uint32_t> values((std::size_t{25} << 18) + 1);  // 25 MiB and a bit
  std::uint32_t value = 1;
  for (std::uint32_t& v : values) v = value = value * 1664525u + 1013904223u;
  std::uint32_t expected = 7;
  const std::span<const std::uint32_t> all(values);
  for (std::size_t begin = 0; begin < all.size(); begin += 1000)
    expected = crc32_of(all.subspan(begin, std::min<std::size_t>(1000, all.size() - begin)), expected);
  EXPECT_EQ(crc32_of(all, 7), expected);
}

}  // namespace
}  // namespace annulus::io
