#include "bench/common/transport_options.hpp"

#include <annulus/base/error.hpp>

namespace annulus::bench {

void TransportOptions::add_to(CLI::App& command) {
  command.add_option("--transport", name,
                     "Of device memory: automatic (NCCL where every rank has a GPU of its own), mpi or nccl");
  command.add_option("--nccl-blocks", nccl_blocks,
                     "Multiprocessors that each channel of NCCL may take from compute, twice on several "
                     "nodes; 0: what NCCL takes");
  command.add_flag("--nccl-multicast", nccl_multicast,
                   "Let NCCL use NVLink multicast (NVLS); off unless NCCL_NVLS_ENABLE says otherwise");
}

void TransportOptions::check() const {
  comm::parse_transport(name, "--transport");
  require(nccl_blocks >= 0, "--nccl-blocks is {}: give 1 or more, or 0 for what NCCL takes", nccl_blocks);
}

std::unique_ptr<comm::Communicator> TransportOptions::connect(const comm::MpiEnvironment& mpi,
                                                              int ranks_per_node) const {
  return comm::connect(mpi, comm::parse_transport(name, "--transport"), ranks_per_node,
                       {.most_blocks = nccl_blocks, .multicast = nccl_multicast});
}

}  // namespace annulus::bench
