// Scratch memory that queues share.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/workspace.hpp"
#include "support/allocations.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

std::int64_t workspace_bytes() {
  return in_use(Owned<Kokkos::View<std::byte*, TestExec>>::kind, MemoryCategory::workspace);
}

using Scratch = Kokkos::View<std::int64_t*, TestExec, Kokkos::MemoryUnmanaged>;
using Results = Kokkos::View<std::int64_t**, Kokkos::LayoutRight, TestExec>;  // (turns, numbers)

void write_scratch(const TestExec& exec, const Scratch& scratch, std::int64_t value) {
  Kokkos::parallel_for(
      "annulus::test::write_scratch", Kokkos::RangePolicy<TestExec>(exec, 0, scratch.size()),
      KOKKOS_LAMBDA(std::int64_t i) { scratch(i) = value; });
}

// From the far end, so that early threads read what late ones wrote.
void read_scratch(const TestExec& exec, const Scratch& scratch, const Results& results, std::int64_t turn) {
  const auto last = static_cast<std::int64_t>(scratch.size()) - 1;
  Kokkos::parallel_for(
      "annulus::test::read_scratch", Kokkos::RangePolicy<TestExec>(exec, 0, scratch.size()),
      KOKKOS_LAMBDA(std::int64_t i) { results(turn, i) = scratch(last - i); });
}

TEST(Workspace, GrowsAndStays) {
  const Queue queue(rank_instance());
  const std::int64_t before = workspace_bytes();
  {
    Workspace workspace(MemoryCategory::workspace, "annulus::test::workspace");
    EXPECT_EQ(workspace_bytes(), before) << "before the first use";
    const std::byte* first = nullptr;
    {
      const Workspace::Use use(workspace, queue, 1000);
      first = use.data();
      ASSERT_NE(first, nullptr);
      EXPECT_EQ(workspace_bytes() - before, 1000);
    }
    {
      const Workspace::Use use(workspace, queue, 400);
      EXPECT_EQ(use.data(), first) << "what is there suffices";
    }
    {
      const Workspace::Use use(workspace, queue, 5000);
      EXPECT_EQ(workspace_bytes() - before, 5000) << "the larger block stands in for the smaller one";
    }
    EXPECT_EQ(workspace_bytes() - before, 5000);
  }
  EXPECT_EQ(workspace_bytes(), before);
}

TEST(Workspace, ItsLabelIsThatOfTheOwner) {
  Workspace workspace(MemoryCategory::workspace, "annulus::test::workspace");
  const Allocations allocations;
  const Workspace::Use use(workspace, Queue(HostExec()), 1000);
  ASSERT_EQ(allocations.labels().size(), 1u);
  EXPECT_EQ(allocations.labels().front(), "annulus::test::workspace: 1000");
}

// Two queues write the block in turns and read it back: neither sees what the other one writes.
TEST(Workspace, TheNextQueueWaitsForTheOneBefore) {
  constexpr std::size_t count = 1 << 16, turns = 10;
  const Queue first(rank_instance()), second = first.new_stream();
  const Results results("annulus::test::results", turns, count);
  Kokkos::fence("annulus::test: the results are zero");
  Workspace workspace(MemoryCategory::workspace, "annulus::test::workspace");
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const Queue& queue = turn % 2 == 0 ? first : second;
    const Workspace::Use use(workspace, queue, count * sizeof(std::int64_t));
    const TestExec& exec = *queue.instance<TestExec>();
    const Scratch scratch(reinterpret_cast<std::int64_t*>(use.data()), count);
    write_scratch(exec, scratch, static_cast<std::int64_t>(turn));
    read_scratch(exec, scratch, results, static_cast<std::int64_t>(turn));
  }
  first.fence("annulus::test: the first queue is done");
  second.fence("annulus::test: the second queue is done");
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), results);
  for (std::size_t turn = 0; turn < turns; ++turn)
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(host(turn, i), static_cast<std::int64_t>(turn)) << "turn " << turn << ", element " << i;
}

}  // namespace
}  // namespace annulus::test
