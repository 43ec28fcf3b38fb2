// In LD_PRELOAD: who yields sleeps for a moment. Ranks that wait for each other call sched_yield in a loop
// (Open MPI with mpi_yield_when_idle, and the library's own waits), which keeps a core busy that other tests
// want. The longer a thread has been waiting, the longer it sleeps: each time it wakes costs as much as a
// sleep of 20 us.
#include <algorithm>
#include <ctime>

namespace {

constexpr long shortest = 20'000, longest = 500'000;  // ns

long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

extern "C" int sched_yield() {
  thread_local long moment = shortest, woken = 0;
  // Who has done something else in between is at the beginning of a wait.
  moment = now() - woken > shortest ? shortest : std::min(moment + moment / 16, longest);
  const timespec time{.tv_sec = 0, .tv_nsec = moment};
  const int result = nanosleep(&time, nullptr);
  woken = now();
  return result;
}
