#include "attention/comm/nccl/peer_copies.hpp"

namespace annulus::comm {

/// Streams of HIP wait for values in its signal memory only, which other processes cannot map
/// (hipStreamWaitValue32, hipMallocSignalMemory): RCCL carries the messages inside of a node, too.
std::unique_ptr<PeerCopies> PeerCopies::make(Communicator&, int) {
  return nullptr;
}

}  // namespace annulus::comm
