#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::test {

/// Makes the communicator on which so many consecutive ranks share a node.
using Nodes = std::function<std::unique_ptr<comm::Communicator>(int ranks_per_node)>;

/// EXPECTs that every schedule is exact on nodes of each of these sizes, with layouts, masks, heads and types
/// by turns, and refuses what docs/schedules.md says. Collective over `ranks` ranks.
void check_schedules(const Nodes& nodes, int ranks, const std::set<int>& on_node, std::int64_t tokens);

/// Runs what long sequences are computed with: bf16 at head_dim 64 and 128 under every schedule and causal,
/// window and document masks, forward and backward, against double precision. EXPECTs that the kernels were
/// the tensor cores' on a device, and the host's SIMD kernels there. Collective over `ranks` ranks.
void check_flagship(const Nodes& nodes, int ranks);

}  // namespace annulus::test
