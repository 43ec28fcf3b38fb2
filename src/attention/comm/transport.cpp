#include <annulus/attention/comm/transport.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/gpu_ids.hpp"

namespace annulus::comm {

namespace {

constexpr std::string_view names[] = {"automatic", "mpi", "nccl"};  // in the order of Transport

}  // namespace

std::string_view name_of(Transport transport) {
  return names[static_cast<std::size_t>(transport)];
}

Transport parse_transport(std::string_view name, std::string_view field) {
  const auto found = std::ranges::find(names, name);
  require(found != std::end(names), "{} '{}' is unknown; known are {}", field, name, fmt::join(names, ", "));
  return static_cast<Transport>(found - names);
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
