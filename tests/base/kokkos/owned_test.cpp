// Owned and the pool of the device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/kokkos/memory/memory.hpp"
#include "support/allocations.hpp"
#include "support/counting.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = Owned<Array1<std::int64_t, TestExec>>;
constexpr MemoryKind here = Numbers::kind;
constexpr MemoryKind elsewhere = here == MemoryKind::host ? MemoryKind::device : MemoryKind::host;

TEST(Owned, CountsWhereItLies) {
  EXPECT_EQ(here, on_host ? MemoryKind::host : MemoryKind::device);
  const TestExec exec = rank_instance();
  const std::int64_t before = in_use(here, MemoryCategory::data),
                     others = memory_use(elsewhere).total_current;
  {
    const auto numbers = Numbers::uninitialized(exec, MemoryCategory::data, "numbers", 100);
    EXPECT_EQ(numbers.view().size(), 100u);
    EXPECT_TRUE(numbers.allocated());
    EXPECT_EQ(in_use(here, MemoryCategory::data) - before, 800);
    EXPECT_EQ(memory_use(elsewhere).total_current, others);
  }
  EXPECT_EQ(in_use(here, MemoryCategory::data), before);
}

TEST(Owned, ZeroedIsZeroWhateverWasThere) {
  const TestExec exec = rank_instance();
  for (int i = 0; i < 3; ++i) {
    const auto numbers = Numbers::zeroed(exec, MemoryCategory::data, "numbers", 1000);
    EXPECT_EQ(on_the_host(exec, *numbers), std::vector<std::int64_t>(1000, 0));
    fill(exec, *numbers, 1);
    exec.fence("annulus::test: written");
  }
}

TEST(Owned, MovesLeaveNothingBehind) {
  const TestExec exec = rank_instance();
  Numbers first = Numbers::uninitialized(exec, MemoryCategory::data, "first", 10);
  fill(exec, *first, 5);
  Numbers second = std::move(first);
  EXPECT_FALSE(first.allocated());
  EXPECT_EQ(first.view().size(), 0u);
  Numbers third;
  EXPECT_FALSE(third.allocated());
  third = std::move(second);
  EXPECT_FALSE(second.allocated());
  EXPECT_EQ(on_the_host(exec, *third), (std::vector<std::int64_t>{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
}

TEST(Owned, NothingTakesNoMemory) {
  const auto none = Numbers::uninitialized(rank_instance(), MemoryCategory::data, "none", 0);
  EXPECT_EQ(none.view().size(), 0u);
}

/// Memory goes back behind the work that uses it: a kernel that is still to run keeps what it writes.
TEST(Owned, WorkInFlightKeepsItsMemory) {
  const TestExec exec = rank_instance();
  constexpr int size = 1 << 18;
  const auto result = Numbers::zeroed(exec, MemoryCategory::data, "result", size);
  for (int round = 1; round <= 50; ++round) {
    const auto part = Numbers::uninitialized(exec, MemoryCategory::data, "part", size);
    fill(exec, *part, round);
    add(exec, *result, *part);
  }
  const auto values = on_the_host(exec, *result);
  std::int64_t wrong = 0;
  for (int i = 0; i < size; ++i) wrong += values[static_cast<std::size_t>(i)] != 50 * 51 / 2 + 50LL * i;
  EXPECT_EQ(wrong, 0);
}

TEST(Owned, ToolsSeeIt) {
  const TestExec exec = rank_instance();
  const Allocations allocations;
  Numbers::uninitialized(exec, MemoryCategory::data, "annulus::test::seen", 4);
  EXPECT_THAT(allocations.labels(), ElementsAre(HasSubstr("annulus::test::seen: ")));
}

TEST(Owned, MemoryThatIsNotThereIsAnErrorThatSaysWhatIsInUse) {
  const TestExec exec = rank_instance();
  const auto some = Numbers::uninitialized(exec, MemoryCategory::optimizer, "some", 2'000'000);
  const std::string text = error_text([&] {
    Numbers::uninitialized(exec, MemoryCategory::activations, "annulus::test::huge", std::int64_t{1} << 50);
  });
  EXPECT_THAT(
      text, mentions("out of " + std::string(name_of(here)) + " memory", "annulus::test::huge (activations)",
                     " are free", "optimizer 16.00 MB", "spread the sequence"));
  // What does not depend on the sequence has a remedy of its own.
  EXPECT_THAT(error_text([&] {
                Numbers::uninitialized(exec, MemoryCategory::gradients, "annulus::test::huge",
                                       std::int64_t{1} << 50);
              }),
              HasSubstr("parallel.zero = 1, 2 or 3"));
  // The next one that fits is there.
  EXPECT_TRUE(Numbers::uninitialized(exec, MemoryCategory::data, "fits", 1000).allocated());
}

#ifdef ANNULUS_TEST_ON_DEVICE
TEST(DevicePool, GrowsOnce) {
  const TestExec exec = rank_instance();
  const auto first = Numbers::zeroed(exec, MemoryCategory::data, "first", 1);
  if (device_memory().pooled == 0) GTEST_SKIP() << "no pool: switched off, or the device has none";
  const auto step = [&] {
    std::vector<Numbers> temporaries;
    for (int i = 1; i <= 8; ++i)
      temporaries.push_back(Numbers::uninitialized(exec, MemoryCategory::workspace, "t", i * 1'000'000));
    fill(exec, *temporaries.back(), 0);
  };
  step();
  exec.fence("annulus::test: one step");
  const std::int64_t after_one = device_memory().pooled;
  EXPECT_GT(after_one, 8'000'000);
  for (int i = 0; i < 20; ++i) step();
  exec.fence("annulus::test: all steps");
  EXPECT_EQ(device_memory().pooled, after_one);
  EXPECT_GT(device_memory().total, after_one);
}

TEST(DevicePool, ArraysAndWhatTheyLeaveAreNotOfLibraries) {
  const TestExec exec = rank_instance();
  const auto first = Numbers::zeroed(exec, MemoryCategory::data, "first", 1);
  if (device_memory().pooled == 0) GTEST_SKIP() << "no pool: switched off, or the device has none";
  const double libraries = double(library_memory()), little = double(std::int64_t{64} << 20);
  EXPECT_GT(libraries, 0);
  {
    const auto array = Numbers::zeroed(exec, MemoryCategory::data, "array", 100'000'000);
    exec.fence("annulus::test: the array is there");
    EXPECT_NEAR(double(library_memory()), libraries, little);
  }
  exec.fence("annulus::test: the array is gone");
  const std::int64_t pooled = device_memory().pooled;
  EXPECT_NEAR(double(library_memory()), libraries, little);
  trim_device_pool();
  EXPECT_LE(device_memory().pooled, pooled - 100'000'000);
  EXPECT_NEAR(double(library_memory()), libraries, little);
}
#endif

#if defined(ANNULUS_TEST_ON_DEVICE) && defined(KOKKOS_ENABLE_CUDA)
/// The last one: there is no way back to the pool.
TEST(DevicePool, MemoryThatOthersMapIsNotOfIt) {
  const TestExec exec = rank_instance();
  auto of_the_pool = Numbers::uninitialized(exec, MemoryCategory::workspace, "pooled", 1'000'000);
  const std::int64_t pooled = device_memory().pooled;
  share_device_memory();
  auto mapped = Numbers::uninitialized(exec, MemoryCategory::workspace, "mapped", 50'000'000);
  EXPECT_EQ(device_memory().pooled, pooled);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, mapped.view().data()), cudaSuccess);
  of_the_pool = std::move(mapped);  // each goes back to where it came from
  EXPECT_TRUE(of_the_pool.allocated());
}
#endif

}  // namespace
}  // namespace annulus::test
