#pragma once

#include <annulus/comm/communicator.hpp>

namespace annulus::comm {

/// `inner`, which moves memory of the host, made to take memory of devices too: messages pass through pinned
/// host memory, by copies on the queue. Every transport that reads host memory alone (null, loopback, MPI)
/// serves devices by it; on queues of the host it adds nothing. `inner` itself where Kokkos knows no device.
///
/// What it costs: a send is copied to the host before exchange() returns, and a receive to the device when
/// its request is waited for, both behind the work that the queue holds by then.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> inner);

}  // namespace annulus::comm
