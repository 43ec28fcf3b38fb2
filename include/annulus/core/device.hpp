#pragma once

namespace annulus {

/// Throws Error where the library was built for GPUs and none can be used: Kokkos would end the process on
/// its own way. Before Kokkos::initialize.
void require_device();

}  // namespace annulus
