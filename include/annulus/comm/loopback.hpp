#pragma once

#include <functional>

#include <annulus/comm/communicator.hpp>

namespace annulus::comm {

/// Runs `body` once for each rank of `topology`, every rank a thread of this process, connected by memory. For
/// tests and for debugging in one debugger. When a rank throws, the others are woken out of their waits with an
/// error, all threads are joined, and the first exception is thrown again.
void run_loopback(const Topology& topology, const std::function<void(Communicator&)>& body);

}  // namespace annulus::comm
