#pragma once

#include <vector>

namespace annulus {

/// Logical cores on which this process may run (its affinity mask), ascending.
std::vector<int> available_cores();

/// The most host threads that Kokkos' arrays of threads have room for.
inline constexpr int most_host_threads = 512;

/// Host threads that a rank should use: KOKKOS_NUM_THREADS or OMP_NUM_THREADS where they are set, otherwise
/// its share of the cores on which it may run (affinity mask, limited by the CPU quota of the container), at
/// least 1. `ranks_sharing_cores` counts the ranks that run on these cores, this one among them: 1 when the
/// launcher bound each rank to cores of its own. Throws Error when a variable is not a positive number or the
/// count is not positive.
int host_threads(int ranks_sharing_cores);

/// As many of `wanted` threads as OpenMP grants a parallel region: OMP_THREAD_LIMIT and
/// OMP_MAX_ACTIVE_LEVELS=0 bound them. From then on the calling thread gets neither more nor, whatever
/// OMP_DYNAMIC says, fewer: BLAS waits for ever for threads that it is not given.
int granted_threads(int wanted);

}  // namespace annulus
