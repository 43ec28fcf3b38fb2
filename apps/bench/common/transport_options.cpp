#include "bench/common/transport_options.hpp"

#include <annulus/base/error.hpp>

namespace annulus::bench {

void TransportOptions::add_to(CLI::App& command) {
  command.add_option("--transport", name,
                     "Of device memory: automatic (NCCL where every rank has a GPU of its own), mpi or nccl");
  command.add_option(
      "--max-ctas", max_ctas,
      "CTAs that an NCCL communicator may use, one communicator per channel, two on several nodes; "
      "0: NCCL's choice");
  command.add_flag("--nccl-multicast", nccl_multicast,
                   "Let NCCL use NVLink multicast (NVLS); off unless NCCL_NVLS_ENABLE says otherwise");
}

void TransportOptions::check() const {
  comm::parse_transport(name, "--transport");
  require(max_ctas >= 0, "--max-ctas is {}: give 1 or more, or 0 for NCCL's choice", max_ctas);
}

std::unique_ptr<comm::Communicator> TransportOptions::connect(const comm::MpiEnvironment& mpi,
                                                              int ranks_per_node) const {
  return comm::connect(mpi, comm::parse_transport(name, "--transport"), ranks_per_node,
                       {.max_ctas = max_ctas, .multicast = nccl_multicast});
}

}  // namespace annulus::bench
