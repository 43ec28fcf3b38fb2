#pragma once

#include <memory>
#include <string>

#include <annulus/attention/comm/transport.hpp>

#include "options/shared.hpp"

namespace annulus::bench {

/// How the ranks of a command reach each other.
struct TransportOptions {
  std::string name = "automatic";  ///< of device memory: automatic, mpi or nccl
  int max_ctas = 0;                ///< thread blocks that a channel of NCCL may take; 0: NCCL's choice
  bool no_copy_engines = false;    ///< NCCL inside of a node, too
  bool nvlink_multicast = false;

  /// Declares the options, which land here when the command line is parsed.
  void add_to(options::SharedOptions& options);
  /// All ranks, over what was asked for. Collective. Errors as those of comm::connect.
  std::unique_ptr<comm::Communicator> connect(const comm::MpiEnvironment& mpi, int ranks_per_node) const;
};

}  // namespace annulus::bench
