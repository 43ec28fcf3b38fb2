#include <annulus/comm/transport.hpp>

#include <utility>

#include <annulus/base/error.hpp>

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
    const std::int32_t possible = has_nccl() && Kokkos::num_devices() >= mpi.ranks_on_this_machine() ? 1 : 0;
    transport = world->all_reduce_value(possible, ReduceOp::min) == 1 ? Transport::nccl : Transport::mpi;
  }
  if (transport == Transport::mpi) return world;
  return make_nccl(std::move(world), nccl);
}

}  // namespace annulus::comm
