#pragma once

#include <Kokkos_Core.hpp>
#include <vector>

namespace annulus {

/// Logical cores on which this process may run (its affinity mask), ascending.
std::vector<int> available_cores();

/// Host threads that a rank should use: OMP_NUM_THREADS when it is set, otherwise its share of the cores on
/// which it may run (affinity mask, limited by the CPU quota of the container), at least 1.
/// `ranks_sharing_cores` counts the ranks that run on these cores, this one among them: 1 when the launcher
/// bound each rank to cores of its own. Throws Error when OMP_NUM_THREADS is not a positive number or the
/// count is not positive.
int host_threads(int ranks_sharing_cores);

/// Settings for Kokkos::initialize: host_threads threads (unless KOKKOS_NUM_THREADS says otherwise), and no
/// warning about OMP_PROC_BIND, which with several unbound ranks on a machine would pin all of them to the
/// same cores.
Kokkos::InitializationSettings kokkos_settings(int ranks_sharing_cores);

}  // namespace annulus
