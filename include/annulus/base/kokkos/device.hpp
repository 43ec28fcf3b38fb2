#pragma once

namespace annulus {

/// Throws Error where the library was built for GPUs and none can be used: Kokkos would end the process on
/// its own way. Before Kokkos::initialize.
void require_device();

/// GPUs that this process may use; 0 in a build for CPUs.
int device_count();

}  // namespace annulus
