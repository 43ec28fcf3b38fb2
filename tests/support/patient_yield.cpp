// In LD_PRELOAD, what the processes of tests do otherwise. Who yields sleeps for a moment. Ranks that wait
// for each other call sched_yield in a loop (Open MPI with mpi_yield_when_idle, and the library's own waits),
// which keeps a core busy that other tests want. The longer a thread has been waiting, the longer it sleeps:
// each time it wakes costs as much as a sleep of 20 us.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include <unistd.h>

namespace {

constexpr long shortest = 20'000, longest = 500'000;  // ns

long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Open MPI 4.1 makes a folder for its session, the same one for all processes of a user. One that starts
// while another one makes or removes it ends: two of a thousand starts of mpirun beside another loop of them.
char own_folder[4096];  // of mpirun
__attribute__((constructor)) void keep_sessions_apart() {
  const std::string_view program = program_invocation_short_name;
  if (program.starts_with("mpirun") || program.starts_with("mpiexec")) {
    const char* const base = std::getenv("TMPDIR");
    std::snprintf(own_folder, sizeof own_folder, "%s/mpi-XXXXXX", base == nullptr ? "/tmp" : base);
    if (mkdtemp(own_folder) != nullptr) setenv("OMPI_MCA_orte_tmpdir_base", own_folder, 0);
  } else if (program.starts_with("annulus-")) {
    for (const char* of_launchers : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
      if (std::getenv(of_launchers) != nullptr) return;
    setenv("OMPI_MCA_orte_create_session_dirs", "false", 0);  // a single rank needs none
  }
}
__attribute__((destructor)) void remove_own_folder() {
  if (own_folder[0] != 0) rmdir(own_folder);
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
