#include "bench/common/transport_options.hpp"

namespace annulus::bench {

void TransportOptions::add_to(options::SharedOptions& options) {
  using options::Shared;
  options.add(Shared::transport, name);
  options.add(Shared::max_ctas, max_ctas);
  options.add(Shared::no_copy_engines, no_copy_engines);
  options.add(Shared::nvlink_multicast, nvlink_multicast);
}

std::unique_ptr<comm::Communicator> TransportOptions::connect(const comm::MpiEnvironment& mpi,
                                                              int ranks_per_node) const {
  return comm::connect(
      mpi, comm::parse_transport(name, "--transport"), ranks_per_node,
      {.max_ctas = max_ctas, .copy_engines = !no_copy_engines, .nvlink_multicast = nvlink_multicast});
}

}  // namespace annulus::bench
