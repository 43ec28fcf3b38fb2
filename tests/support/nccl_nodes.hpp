#pragma once

#include <Kokkos_Core.hpp>
#include <cstdlib>
#include <string>

namespace annulus::test {

/// Where there are fewer GPUs than ranks, makes NCCL see a machine for every round of ranks over the GPUs,
/// with the network between them (here loopback sockets): NCCL wants for every rank a GPU of its own of its
/// node. To be called before NCCL starts, when Kokkos has.
inline void let_ranks_share_gpus(int rank, int ranks) {
  const int gpus = Kokkos::num_devices();
  if (gpus < 1 || gpus >= ranks) return;
  setenv("NCCL_HOSTID", ("node" + std::to_string(rank / gpus)).c_str(), 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

}  // namespace annulus::test
