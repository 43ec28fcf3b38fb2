#include "base/kokkos/execution/threads.hpp"

#include <sched.h>

#include <Kokkos_Macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"

#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

namespace annulus {

namespace {

/// Cores that the container's CPU quota (cgroup version 2, then 1) amounts to, rounded up; the largest int
/// without one.
int quota_cores() {
  double quota = 0, period = 0;
  if (std::ifstream both("/sys/fs/cgroup/cpu.max");
      !(both >> quota >> period)) {  // "max 100000" fails here: no quota
    std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        second("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(first >> quota) || !(second >> period)) return std::numeric_limits<int>::max();
  }
  if (quota <= 0 || period <= 0) return std::numeric_limits<int>::max();
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

/// The threads that `name` asks for; 0 where it is unset or empty. "4,2": the outermost level counts.
int threads_of(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  const std::string_view all(text);
  const auto threads = parse_number<int>(all.substr(0, all.find(',')));
  require(threads && *threads > 0, "{}='{}' is not a positive number of threads: correct or unset it", name,
          all);
  return *threads;
}

}  // namespace

std::vector<int> available_cores() {
  std::vector<int> cores;
  // The kernel may know more than 1024 cores.
  for (std::size_t limit = 1024; limit <= (std::size_t{1} << 20); limit *= 2) {
    cpu_set_t* set = CPU_ALLOC(limit);
    const std::size_t bytes = CPU_ALLOC_SIZE(limit);
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (std::size_t core = 0; known && core < limit; ++core)
      if (CPU_ISSET_S(core, bytes, set)) cores.push_back(static_cast<int>(core));
    CPU_FREE(set);
    if (known) return cores;
  }
  for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core)
    cores.push_back(static_cast<int>(core));
  return cores;
}

int host_threads(int ranks_sharing_cores) {
  require(ranks_sharing_cores > 0, "{} ranks share the cores of this rank: the count must be positive",
          ranks_sharing_cores);
  for (const char* name : {"KOKKOS_NUM_THREADS", "OMP_NUM_THREADS"})
    if (const int threads = threads_of(name); threads > 0) return threads;
  const int cores = std::min(static_cast<int>(available_cores().size()), quota_cores());
  return std::max(1, cores / ranks_sharing_cores);
}

int granted_threads([[maybe_unused]] int wanted) {
#ifdef KOKKOS_ENABLE_OPENMP
  omp_set_dynamic(0);
  int granted = 1;
#pragma omp parallel num_threads(wanted)
#pragma omp single
  granted = omp_get_num_threads();
  return granted;
#else
  return wanted;
#endif
}

}  // namespace annulus
