// The buffers through which memory of devices moves over the host: which message gets which.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "comm/staged/staging.hpp"
#include "support/allocations.hpp"

namespace annulus::comm {
namespace {

TEST(PinnedPool, ABufferServesMessagesOfAboutOneSize) {
  PinnedPool pool;
  PinnedPool::Buffer buffer = pool.take(10000);
  const std::byte* const memory = buffer.data();
  pool.give_back(std::move(buffer));
  PinnedPool::Buffer again = pool.take(9900);
  EXPECT_EQ(again.data(), memory);
  EXPECT_NE(pool.take(10000).data(), memory) << "the buffer is in use";
}

TEST(PinnedPool, BuffersHoldTheirMessageInPowersOfTwo) {
  PinnedPool pool;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{1025},
                                  std::size_t{16384}, std::size_t{100000007}}) {
    const std::size_t size = pool.take(bytes).memory.view().size();
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, std::max<std::size_t>(4096, 2 * bytes)) << bytes;
    EXPECT_TRUE(std::has_single_bit(size)) << bytes;
  }
}

// When a large buffer happened to be free first, a small message took it, and the next large one needed
// memory that the passes before had not.
TEST(PinnedPool, WhichMessageEndsFirstDoesNotMatterToWhatIsAllocated) {
  PinnedPool pool;
  PinnedPool::Buffer small = pool.take(100), large = pool.take(1 << 20);
  pool.give_back(std::move(large));
  const test::Allocations allocations;
  PinnedPool::Buffer next = pool.take(90);
  pool.give_back(std::move(small));
  EXPECT_EQ(allocations.labels().size(), 1u) << "for the second small message under way";
  large = pool.take(1 << 20);
  small = pool.take(100);
  EXPECT_EQ(allocations.labels().size(), 1u);
}

}  // namespace
}  // namespace annulus::comm
