#pragma once

namespace annulus {

/// Does what ANNULUS_PROFILE says: nothing where it is unset or empty; `nvtx`: regions (the steps of a plan,
/// the phases of training), kernels, copies and fences become NVTX ranges by their names, for Nsight Systems.
/// Throws Error for anything else, and where the library was built without NVTX. Before Kokkos::initialize:
/// profiling then adds no fences, so that what overlaps still does.
void start_profile();

}  // namespace annulus
