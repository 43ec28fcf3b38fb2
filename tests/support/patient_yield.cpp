// In LD_PRELOAD: who yields sleeps for a moment. Ranks that wait for each other call sched_yield in a loop
// (Open MPI with mpi_yield_when_idle, and the library's own waits), which keeps a core busy that other tests
// want.
#include <ctime>

extern "C" int sched_yield() {
  const timespec moment{.tv_sec = 0, .tv_nsec = 20'000};
  return nanosleep(&moment, nullptr);
}
