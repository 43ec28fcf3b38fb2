#pragma once

#include <Kokkos_Core.hpp>
#include <functional>
#include <string>

/// What a program asks for before Kokkos::initialize.
namespace annulus {

/// Whether Kokkos can start: always in a build for CPUs, and with a usable GPU in a build for GPUs.
bool finds_device();

/// Throws Error where the library was built for GPUs and none can be used: Kokkos would end the process on
/// its own way.
void require_device();

/// Settings for Kokkos::initialize: a thread for each core that this rank may use (affinity mask, limited by
/// the CPU quota of the container and divided by the ranks on these cores, this one among them), or
/// KOKKOS_NUM_THREADS or OMP_NUM_THREADS, as far as OpenMP grants them and Kokkos has room for them. No
/// warning about OMP_PROC_BIND, which with several unbound ranks on a machine would pin all of them to the
/// same cores. `warn` is told where these are fewer threads than were asked for. Throws Error that names the
/// variable when a value of KOKKOS_* is one that Kokkos would end the process for, or read as something else.
Kokkos::InitializationSettings kokkos_settings(int ranks_sharing_cores,
                                               const std::function<void(const std::string&)>& warn = {});

}  // namespace annulus
