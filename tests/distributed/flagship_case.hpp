#pragma once

#include <functional>
#include <memory>

#include <annulus/comm/communicator.hpp>

namespace annulus::test {

/// What long sequences are computed with: bf16 at head_dim 64 and 128 under every schedule and causal, window
/// and document masks, forward and backward, against double precision. EXPECTs that the kernels were the
/// tensor cores' on a device, and the host's SIMD kernels there. Collective over `ranks` ranks; `nodes` makes
/// the communicator on which so many consecutive ranks share a node.
void check_flagship(const std::function<std::unique_ptr<comm::Communicator>(int ranks_per_node)>& nodes,
                    int ranks);

}  // namespace annulus::test
