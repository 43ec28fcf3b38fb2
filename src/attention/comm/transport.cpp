#include <annulus/attention/comm/transport.hpp>

#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/gpu_ids.hpp"
#include "base/nearest.hpp"

namespace annulus::comm {

Transport parse_transport(std::string_view name, std::string_view field) {
  constexpr std::string_view transport_names[] = {"automatic", "mpi", "nccl"};  // in the order of Transport
  return static_cast<Transport>(place_of_name(name, transport_names, field));
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
