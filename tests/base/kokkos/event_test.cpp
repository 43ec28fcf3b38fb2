// Points in the work of queues: what waits for them, and the time between two.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/execution/region_times.hpp"
#include "base/kokkos/execution/stopwatch.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

using Counters = Array1<std::int64_t, TestExec>;

// Rounds of count_up: enough that whoever does not wait for them reads what was there before.
constexpr std::int64_t many = 50000;

void count_up(const TestExec& exec, const Counters& numbers, std::int64_t times) {
  Kokkos::parallel_for(
      "annulus::test::count_up", Kokkos::RangePolicy<TestExec>(exec, 0, numbers.size()),
      KOKKOS_LAMBDA(std::int64_t i) {
        for (std::int64_t t = 0; t < times; ++t) {
          volatile std::int64_t* const number = &numbers(i);
          *number = *number + 1;
        }
      });
}

void copy_counters(const TestExec& exec, const Counters& from, const Counters& to) {
  Kokkos::parallel_for(
      "annulus::test::copy", Kokkos::RangePolicy<TestExec>(exec, 0, to.size()),
      KOKKOS_LAMBDA(std::int64_t i) { to(i) = from(i); });
}

std::int64_t first_counter(const Queue& queue, const Counters& numbers) {
  std::int64_t first = 0;
  queue.copy_to_host(&first, numbers.data(), sizeof first);
  queue.fence("annulus::test: the value is there");
  return first;
}

TEST(Event, IsDoneWhereNothingWasRecorded) {
  const Event event;
  EXPECT_TRUE(event.done());
  event.wait();
  event.block(Queue(rank_instance()));
}

TEST(Event, OtherQueuesWaitForIt) {
  const TestExec exec = rank_instance();
  const Queue first(exec), second = first.new_stream();
  const TestExec* const other = second.instance<TestExec>();
  ASSERT_NE(other, nullptr);
  const Counters counted("annulus::test::counted", 64), seen("annulus::test::seen", 64);
  exec.fence("annulus::test: both are zero");
  Event event;
  count_up(exec, counted, many);
  event.record(first);
  count_up(exec, counted, many);
  event.block(second);
  copy_counters(*other, counted, seen);
  // At least what came before the point; what came after may have begun.
  EXPECT_GE(first_counter(second, seen), many);
  EXPECT_EQ(first_counter(first, counted), 2 * many);
}

TEST(Event, TheHostWaitsForIt) {
  const TestExec exec = rank_instance();
  const Counters counted("annulus::test::counted", 64);
  exec.fence("annulus::test: it is zero");
  Event event;
  count_up(exec, counted, many);
  event.record(Queue(exec));
  event.wait();
  EXPECT_TRUE(event.done());
  EXPECT_EQ(first_counter(Queue(exec), counted), many);
}

TEST(Event, OnAQueueOfTheHostThePointIsPassed) {
  Event event;
  event.record(Queue(HostExec()));
  EXPECT_TRUE(event.done());
}

TEST(Event, MovesWithItsPoint) {
  const TestExec exec = rank_instance();
  const Counters counted("annulus::test::counted", 64);
  Event event;
  count_up(exec, counted, many);
  event.record(Queue(exec));
  Event moved = std::move(event);
  EXPECT_TRUE(event.done());  // NOLINT(bugprone-use-after-move): it has no point any more
  event = std::move(moved);
  event.wait();
  EXPECT_TRUE(event.done());
}

TEST(Event, SecondsBetweenTwoPoints) {
  const TestExec exec = rank_instance();
  const Queue queue(exec);
  const Counters counted("annulus::test::counted", 64);
  Event begin(Event::Timing::on), end(Event::Timing::on);
  const auto start = std::chrono::steady_clock::now();
  begin.record(queue);
  count_up(exec, counted, many);
  end.record(queue);
  end.wait();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  const double seconds = Event::seconds_between(begin, end);
  EXPECT_GT(seconds, 1e-4);
  EXPECT_LE(seconds, 1.01 * all.count());
}

TEST(Event, SecondsNeedTimedPointsOfOneKind) {
  const Queue queue(rank_instance());
  Event plain, timed(Event::Timing::on);
  plain.record(queue);
  timed.record(queue);
  timed.wait();
  EXPECT_NE(error_text([&] { Event::seconds_between(plain, timed); }).find("Timing::on"), std::string::npos);
  if (!on_host) {
    Event host(Event::Timing::on);
    host.record(Queue(HostExec()));
    EXPECT_NE(error_text([&] { Event::seconds_between(timed, host); }).find("of the host"),
              std::string::npos);
  }
}

TEST(EventPool, GivesWhatHasComeBack) {
  const Queue queue(rank_instance());
  EventPool pool;
  const Event* first = nullptr;
  {
    const EventPool::Taken event = pool.record(queue);
    first = event.get();
    EXPECT_NE(pool.take().get(), first) << "the event is in use";
    const EventPool::Taken copy = event;
    EXPECT_EQ(copy.get(), first);
  }
  const EventPool::Taken again = pool.take(), other = pool.take();
  EXPECT_TRUE(again.get() == first || other.get() == first);
  EXPECT_NE(again.get(), other.get());
}

TEST(EventPool, EventsOutliveIt) {
  EventPool::Taken event;
  {
    EventPool pool;
    event = pool.record(Queue(rank_instance()));
  }
  event->wait();
  EXPECT_TRUE(event->done());
}

TEST(Stopwatch, AddsUpTheIntervalsOnly) {
  const TestExec exec = rank_instance();
  const Counters counted("annulus::test::counted", 64);
  exec.fence("annulus::test: it is zero");
  Stopwatch<TestExec> watch;
  double inside = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    watch.begin(exec);
    count_up(exec, counted, many);
    watch.end(exec);
    exec.fence("annulus::test: the interval is over");
    inside += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_GT(watch.seconds(), 1e-4);
  EXPECT_LE(watch.seconds(), 1.01 * inside);
  watch.reset();
  EXPECT_EQ(watch.seconds(), 0);
}

TEST(RegionTimes, AddUpToTheWholeByTheInnermostPart) {
  const TestExec exec = rank_instance();
  const Counters counted("annulus::test::counted", 64);
  exec.fence("annulus::test: it is zero");
  const auto part_of = [](int around, std::string_view name) {
    return name == "outer" ? 1 : name == "inner" ? 2 : around;
  };
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const Region before("outer");  // began earlier, and does not count
  const auto start = std::chrono::steady_clock::now();
  RegionTimes times(exec, 4, part_of);
  wait();
  {
    const Region outer("outer"), no_part("neither");
    count_up(exec, counted, many);
    exec.fence("annulus::test: the host sleeps with the queue empty");
    wait();
    const Region inner("inner");
    for (int i = 0; i < 3; ++i) {
      const Region again("inner");
      wait();
    }
  }
  wait();
  const std::vector<double> seconds = times.seconds();
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(seconds.size(), 4u);
  EXPECT_GT(seconds[0], 0.04);
  EXPECT_GT(seconds[1], 0.02);
  EXPECT_GT(seconds[2], 0.06);
  EXPECT_EQ(seconds[3], 0);
  EXPECT_NEAR(seconds[0] + seconds[1] + seconds[2], all, 0.2 * all);
}

}  // namespace
}  // namespace annulus::test
