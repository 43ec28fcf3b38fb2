// In LD_PRELOAD, what the processes of tests do otherwise. Who yields sleeps for a moment. Ranks that wait
// for each other call sched_yield in a loop (Open MPI with mpi_yield_when_idle, and the library's own waits),
// which keeps a core busy that other tests want. The longer a thread has been waiting, the longer it sleeps:
// each time it wakes costs as much as a sleep of 20 us.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string_view>

namespace {

constexpr long shortest = 20'000, longest = 500'000;  // ns

long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Open MPI 4.1 makes a folder for the session of a process without mpirun, the same one for all of them, and
// ends the process where another one that starts at that moment has just made it. A single rank needs none.
__attribute__((constructor)) void leave_out_session() {
  // mpirun, and what starts it, needs its folder.
  if (!std::string_view(program_invocation_short_name).starts_with("annulus-")) return;
  for (const char* of_launchers : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (std::getenv(of_launchers) != nullptr) return;
  setenv("OMPI_MCA_orte_create_session_dirs", "false", 0);
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
