// Pinned buffers, alone and out of their pool: which request gets which, and what waits for copies under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/pinned.hpp"
#include "support/allocations.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

PinnedPool a_pool() {
  return {MemoryCategory::data, "annulus::test::pinned"};
}

TEST(PinnedBuffer, CountsAsMemoryOfTheHostWhileItLives) {
  const auto in_use = [] { return test::in_use(MemoryKind::host, MemoryCategory::data); };
  const std::int64_t before = in_use();
  {
    PinnedBuffer buffer(MemoryCategory::data, "annulus::test::pinned", 4096);
    EXPECT_EQ(in_use() - before, 4096);
    const PinnedBuffer moved = std::move(buffer);
    EXPECT_EQ(in_use() - before, 4096);
    EXPECT_EQ(moved.size(), 4096u);
    EXPECT_EQ(moved.as<double>().size(), 512u);
    EXPECT_EQ(static_cast<void*>(moved.as<double>().data()), moved.data());
  }
  EXPECT_EQ(in_use(), before);
  EXPECT_FALSE(PinnedBuffer().allocated());
}

TEST(PinnedBuffer, CarriesValuesToTheDeviceAndBack) {
  const Queue queue(rank_instance());
  constexpr std::size_t count = 1000;
  const PinnedBuffer there(MemoryCategory::data, "annulus::test::there", count * sizeof(std::int32_t));
  const PinnedBuffer back(MemoryCategory::data, "annulus::test::back", count * sizeof(std::int32_t));
  const Array1<std::int32_t, TestExec> device("annulus::test::device", count);
  const std::span numbers = there.as<std::int32_t>();
  std::iota(numbers.begin(), numbers.end(), 7);
  queue.copy_from_host(device.data(), there.data(), there.size());
  queue.copy_to_host(back.data(), device.data(), back.size());
  queue.fence("annulus::test: the copies are done");
  EXPECT_TRUE(std::ranges::equal(numbers, back.as<std::int32_t>()));
}

TEST(PinnedPool, ABufferServesRequestsOfAboutOneSize) {
  PinnedPool pool = a_pool();
  PinnedPool::Buffer buffer = pool.take(10000);
  const std::byte* const memory = buffer.data();
  pool.give_back(std::move(buffer));
  PinnedPool::Buffer again = pool.take(9900);
  EXPECT_EQ(again.data(), memory);
  EXPECT_NE(pool.take(10000).data(), memory) << "the buffer is in use";
}

TEST(PinnedPool, BuffersHoldTheirRequestInPowersOfTwo) {
  PinnedPool pool = a_pool();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{1025},
                                  std::size_t{16384}, std::size_t{100000007}}) {
    const std::size_t size = pool.take(bytes).memory.size();
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, std::max<std::size_t>(4096, 2 * bytes)) << bytes;
    EXPECT_TRUE(std::has_single_bit(size)) << bytes;
  }
}

// When a large buffer happened to be free first, a small message took it, and the next large one needed
// memory that the passes before had not.
TEST(PinnedPool, WhichRequestEndsFirstDoesNotMatterToWhatIsAllocated) {
  PinnedPool pool = a_pool();
  PinnedPool::Buffer small = pool.take(100), large = pool.take(1 << 20);
  pool.give_back(std::move(large));
  const Allocations allocations;
  PinnedPool::Buffer next = pool.take(90);
  pool.give_back(std::move(small));
  EXPECT_EQ(allocations.labels().size(), 1u) << "for the second small request under way";
  large = pool.take(1 << 20);
  small = pool.take(100);
  EXPECT_EQ(allocations.labels().size(), 1u);
}

// Many rounds of one buffer: each copy to the device reads it before the host writes the next round's values.
TEST(PinnedPool, ABufferIsTakenAgainOnlyAfterItsCopy) {
  const Queue queue(rank_instance());
  constexpr std::size_t count = 1 << 18, rounds = 20;
  PinnedPool pool = a_pool();
  EventPool events;
  const Array1<std::int32_t, TestExec> device("annulus::test::device", count * rounds);
  const std::byte* first = nullptr;
  for (std::size_t round = 0; round < rounds; ++round) {
    PinnedPool::Buffer buffer = pool.take(count * sizeof(std::int32_t));
    if (round == 0) first = buffer.data();
    EXPECT_EQ(buffer.data(), first);
    std::ranges::fill(buffer.memory.as<std::int32_t>(), static_cast<std::int32_t>(round));
    queue.copy_from_host(device.data() + round * count, buffer.data(), count * sizeof(std::int32_t));
    buffer.used = events.record(queue);
    pool.give_back(std::move(buffer));
  }
  std::vector<std::int32_t> all(count * rounds);
  queue.copy_to_host(all.data(), device.data(), all.size() * sizeof(std::int32_t));
  queue.fence("annulus::test: the copies are done");
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], static_cast<std::int32_t>(i / count)) << "element " << i;
}

}  // namespace
}  // namespace annulus::test
