#pragma once

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

/// `inner`, which moves memory of the host, made to take memory of devices too: it passes through pinned host
/// memory, in chunks, of which one is copied while another travels. Every transport that reads host memory
/// alone (null, loopback, an MPI that is not CUDA-aware) serves devices by it; on queues of the host it adds
/// nothing. `inner` itself where Kokkos knows no device.
///
/// Exchanges are copied by queues of their own, so that kernels that are enqueued afterwards do not hold them
/// up; the host lets chunks go whenever it waits for an exchange or calls progress(). After wait() what the
/// queue does next sees the data; the host does not wait for the copy. Collectives wait for their data.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> inner);

}  // namespace annulus::comm
