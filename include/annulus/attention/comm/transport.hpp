#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/comm/nccl.hpp>

namespace annulus::comm {

/// What carries the memory of devices from rank to rank. Memory of the host always goes over MPI.
enum class Transport : std::uint8_t {
  automatic,  ///< nccl where the library has it and every rank has a GPU of its own, seen by others or not;
              ///< otherwise mpi
  mpi,        ///< through pinned memory of the host
  nccl
};
std::string_view name_of(Transport transport);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
Transport parse_transport(std::string_view name, std::string_view field = "transport");

/// mpi.world(ranks_per_node) over a transport. Where `automatic` comes to MPI in a build with a device,
/// description() says why. Collective. Throws Error where NCCL is asked for and cannot be
/// had (see make_nccl).
std::unique_ptr<Communicator> connect(const MpiEnvironment& mpi, Transport transport, int ranks_per_node = 0,
                                      const NcclOptions& nccl = {});

}  // namespace annulus::comm
