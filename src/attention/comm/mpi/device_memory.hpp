#pragma once

#include <string_view>

namespace annulus::comm {

/// Whether memory of devices goes to an MPI as it is. `wish` is the value of ANNULUS_MPI_DEVICE_MEMORY:
/// "staged" never; "direct" where this program has a device, whatever MPI says of itself; "" where the MPI
/// says that it reads it (`aware`), too. Throws Error naming the variable for anything else.
bool sends_device_memory(std::string_view wish, bool has_device, bool aware);

/// Whether memory of devices goes to the MPI of this process: it takes pointers to the memory of NVIDIA's
/// GPUs ("CUDA-aware"), or is said to.
bool mpi_reads_device_memory();

}  // namespace annulus::comm
