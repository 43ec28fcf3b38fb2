#include <annulus/comm/transport.hpp>

#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/core/tensor.hpp>

#include "comm/gpu_ids.hpp"

namespace annulus::comm {

std::string_view name_of(Transport transport) {
  switch (transport) {
    case Transport::automatic:
      return "automatic";
    case Transport::mpi:
      return "mpi";
    case Transport::nccl:
      return "nccl";
  }
  return "unknown";
}

Transport parse_transport(std::string_view name, std::string_view field) {
  for (const Transport transport : {Transport::automatic, Transport::mpi, Transport::nccl}) {
    if (name_of(transport) == name) return transport;
  }
  fail("{} '{}' is unknown; known are automatic, mpi and nccl", field, name);
}

std::unique_ptr<Communicator> connect(const MpiEnvironment& mpi, Transport transport, int ranks_per_node,
                                      const NcclOptions& nccl) {
  auto world = mpi.world(ranks_per_node);
  if (transport == Transport::automatic) {
    // All ranks must come to the same answer, on machines that need not be alike.
    const TransportChoice choice = choose_transport(gather_gpu_ids(*world));
    transport = choice.transport;
    if (has_device && transport == Transport::mpi) {
      world = mpi.world(ranks_per_node, "not NCCL, as " + choice.reason);
    }
  }
  if (transport == Transport::mpi) return world;
  return make_nccl(std::move(world), nccl);
}

}  // namespace annulus::comm
