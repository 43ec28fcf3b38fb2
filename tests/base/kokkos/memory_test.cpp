
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus {
namespace {

std::size_t index(MemoryCategory category) {
  return static_cast<std::size_t>(category);
}

/// What changed since construction, so that tests do not depend on what else is in use.
class Change {
 public:
  std::int64_t current(MemoryCategory category) const {
    return memory_use().current[index(category)] - before_.current[index(category)];
  }
  std::int64_t peak(MemoryCategory category) const {
    return memory_use().peak[index(category)] - before_.current[index(category)];
  }
  std::int64_t total() const { return memory_use().total_current - before_.total_current; }
  std::int64_t total_peak() const { return memory_use().total_peak - before_.total_current; }

 private:
  MemoryUse before_ = (reset_memory_peaks(), memory_use());
};

using Matrix = Owned<Array2<float, HostExec>>;

TEST(Memory, OwnedViewsCountWhileTheyLive) {
  const Change change;
  {
    const auto weights =
        Matrix::zeroed(HostExec(), MemoryCategory::parameters, "annulus::test::weights", 10, 20);
    EXPECT_TRUE(weights.allocated());
    EXPECT_EQ(weights.view()(9, 19), 0.0f);
    EXPECT_EQ(weights.view().label(), "annulus::test::weights");
    EXPECT_EQ(change.current(MemoryCategory::parameters), 800);
    {
      const auto scratch =
          Owned<Array1<double, HostExec>>::uninitialized(HostExec(), MemoryCategory::workspace, "s", 5);
      EXPECT_EQ((*scratch).extent(0), 5u);
      EXPECT_EQ(change.current(MemoryCategory::workspace), 40);
      EXPECT_EQ(change.total(), 840);
    }
    EXPECT_EQ(change.total(), 800);
  }
  EXPECT_EQ(change.total(), 0);
  EXPECT_EQ(change.peak(MemoryCategory::parameters), 800);
  EXPECT_EQ(change.peak(MemoryCategory::workspace), 40);
  EXPECT_EQ(change.peak(MemoryCategory::data), 0);
  EXPECT_EQ(change.total_peak(), 840);
}

TEST(Memory, MovesCountOnce) {
  const Change change;
  Matrix first = Matrix::uninitialized(HostExec(), MemoryCategory::gradients, "first", 4, 4);
  Matrix second = std::move(first);
  EXPECT_EQ(change.current(MemoryCategory::gradients), 64);
  second = Matrix::uninitialized(HostExec(), MemoryCategory::optimizer, "second", 2, 2);
  EXPECT_EQ(change.current(MemoryCategory::gradients), 0);
  EXPECT_EQ(change.current(MemoryCategory::optimizer), 16);
  second = Matrix();
  EXPECT_EQ(change.total(), 0);
  EXPECT_FALSE(second.allocated());
}

/// The peak of the total is that of one moment, not the sum of the peaks.
TEST(Memory, PeakOfTheTotalIsSimultaneous) {
  const Change change;
  for (const MemoryCategory category : {MemoryCategory::activations, MemoryCategory::communication})
    Matrix::uninitialized(HostExec(), category, "m", 5, 5);
  EXPECT_EQ(change.peak(MemoryCategory::activations), 100);
  EXPECT_EQ(change.peak(MemoryCategory::communication), 100);
  EXPECT_EQ(change.total_peak(), 100);
}

TEST(Memory, ResetForgetsThePastOnly) {
  const Change change;
  const auto kept = Matrix::uninitialized(HostExec(), MemoryCategory::data, "kept", 1, 3);
  Matrix::uninitialized(HostExec(), MemoryCategory::data, "gone", 1, 1000);
  EXPECT_EQ(change.peak(MemoryCategory::data), 4012);
  reset_memory_peaks();
  EXPECT_EQ(change.peak(MemoryCategory::data), 12);
  EXPECT_EQ(change.total_peak(), 12);
}

TEST(Memory, ThreadsCountTogether) {
  const Change change;
  constexpr int rounds = 20000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < rounds; ++i)
          detail::MemoryCharge(MemoryKind::host, MemoryCategory::data, 8 + i % 3);
      });
  }
  EXPECT_EQ(change.total(), 0);
  EXPECT_GE(change.peak(MemoryCategory::data), 10);
  EXPECT_LE(change.peak(MemoryCategory::data), 40);
}

TEST(Memory, CategoriesHaveNames) {
  std::set<std::string_view> names;
  for (int c = 0; c < memory_category_count; ++c) names.insert(name_of(static_cast<MemoryCategory>(c)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(memory_category_count));
  EXPECT_EQ(names.count("?"), 0u);
  EXPECT_EQ(name_of(MemoryCategory::communication), "communication");
}

TEST(Memory, ResidentPeakGrowsWithMemoryTouched) {
  const std::int64_t before = peak_resident_bytes();
  EXPECT_GT(before, 1 << 20);
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const auto block =
      Owned<Array1<char, HostExec>>::uninitialized(HostExec(), MemoryCategory::workspace, "touched", bytes);
  std::memset(block.view().data(), 1, bytes);
  EXPECT_GE(peak_resident_bytes() - before, static_cast<std::int64_t>(bytes / 2));
}

}  // namespace
}  // namespace annulus
