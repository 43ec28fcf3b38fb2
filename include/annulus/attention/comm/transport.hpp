#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <annulus/attention/comm/mpi.hpp>

namespace annulus::comm {

/// What carries the memory of devices from rank to rank. Memory of the host always goes over MPI.
enum class Transport : std::uint8_t {
  automatic,  ///< nccl where the library has it and every rank has a GPU of its own, seen by others or not;
              ///< otherwise mpi
  mpi,        ///< through pinned memory of the host
  nccl
};

/// The transport of this name, which is spelt as above. Throws Error naming `field` when there is none.
Transport parse_transport(std::string_view name, std::string_view field = "transport");

/// How NCCL carries the memory of devices.
struct NcclOptions {
  /// Channels on which exchanges can be posted: 0 … channels − 1. Each is an NCCL communicator with a stream
  /// of its own, and with several nodes a second one for messages inside the node, so that one does not wait
  /// for another.
  int channels = 4;
  /// Thread blocks, one an SM, that each channel may take from compute, and with several nodes
  /// once more for messages inside the node; attention then leaves as many free while exchanges are under
  /// way. 0 leaves it to NCCL, and attention does not know.
  int max_ctas = 0;
  /// Messages inside of a node go by the copy engines of the GPUs, where all of them can write into each
  /// other's memory, and take no SM. Off, or where they cannot: by NCCL.
  bool copy_engines = true;
  /// NVLink multicast (NVLS), which NCCL uses for reductions inside a node. An NCCL_NVLS_ENABLE in the
  /// environment goes before it.
  bool nvlink_multicast = false;
};

/// mpi.world(ranks_per_node) over a transport. Where `automatic` comes to MPI in a build with a device,
/// description() says why. Collective. Throws Error where NCCL is asked for and cannot be
/// had (see make_nccl).
std::unique_ptr<Communicator> connect(const MpiEnvironment& mpi, Transport transport, int ranks_per_node = 0,
                                      const NcclOptions& nccl = {});

/// NCCL between the GPUs of the ranks of `control` (usually MPI): one GPU a rank, the one that Kokkos uses.
/// Collective.
///
/// Memory of devices goes over NCCL, in the order of streams: exchange() begins when the work that its queue
/// holds is done, and a request that has been waited for lets work that is enqueued on that queue afterwards
/// see the data. The host waits for neither. Reductions are exchanges and sums on the device, in rank order
/// (NCCL's own are not), in 128 MiB of workspace. Memory of the host and barriers go through `control`. NCCL
/// cannot tell that two sides disagree on the size of a message. Errors that NCCL meets later are thrown by
/// the next wait, test or exchange. A request that is given up while an exception unwinds the stack aborts
/// NCCL on this rank.
///
/// Under a timeout of waits (MpiEnvironment::set_stall_timeout) a transfer that waits for another rank for
/// longer, and an error that NCCL meets, end the job, whatever the host does meanwhile.
///
/// Throws Error where the library was built without NCCL, and when ranks of a node share a GPU. Nodes that
/// NCCL_HOSTID makes of one machine may have the same GPUs: ranks take turns on them, which shows what is
/// computed, not how fast.
std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator> control,
                                        const NcclOptions& options = {});

/// The library was built with NCCL.
bool has_nccl();

}  // namespace annulus::comm
