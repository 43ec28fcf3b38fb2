#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/fingerprint.hpp"

namespace annulus {
namespace {

std::uint64_t of(const std::vector<std::int64_t>& numbers) {
  Fingerprint fingerprint;
  fingerprint.add(std::span<const std::int64_t>(numbers));
  return fingerprint.value();
}

std::uint64_t of_texts(const std::vector<std::string>& texts) {
  Fingerprint fingerprint;
  for (const std::string& text : texts) fingerprint.add(text);
  return fingerprint.value();
}

TEST(Fingerprint, EveryBitOfEveryNumberCounts) {
  std::set<std::uint64_t> seen;
  std::size_t cases = 0;
  for (const std::size_t size : {1u, 4u, 7u, 64u}) {
    std::vector<std::int64_t> numbers(size);
    for (std::size_t i = 0; i < size; ++i) numbers[i] = static_cast<std::int64_t>(100 * i);
    seen.insert(of(numbers));
    ++cases;
    for (std::size_t i = 0; i < size; ++i)
      for (int bit = 0; bit < 64; ++bit) {
        auto flipped = numbers;
        flipped[i] ^= std::int64_t{1} << bit;
        seen.insert(of(flipped));
        ++cases;
      }
  }
  EXPECT_EQ(seen.size(), cases);
}

TEST(Fingerprint, OrderAndLengthCount) {
  EXPECT_EQ(of({1, 2, 3, 4, 5}), of({1, 2, 3, 4, 5}));
  EXPECT_NE(of({1, 2, 3, 4, 5}), of({2, 1, 3, 4, 5}));
  EXPECT_NE(of({1, 2, 3, 4, 5}), of({5, 2, 3, 4, 1}));  // in one lane
  EXPECT_NE(of({}), of({0}));
  EXPECT_NE(of({0}), of({0, 0}));
}

TEST(Fingerprint, TextsEndWhereTheyEnd) {
  EXPECT_EQ(of_texts({"a long text of many words", "b"}), of_texts({"a long text of many words", "b"}));
  EXPECT_NE(of_texts({"ab", "c"}), of_texts({"a", "bc"}));
  EXPECT_NE(of_texts({"a"}), of_texts({std::string("a\0", 2)}));
  EXPECT_NE(of_texts({"12345678", ""}), of_texts({"12345678"}));
}

}  // namespace
}  // namespace annulus
