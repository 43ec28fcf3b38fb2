#pragma once

#include <string>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

/// A switch of NCCL's in the environment (NCCL_P2P_DISABLE) is on.
bool is_set(const char* variable);

/// How NCCL gets from the GPU `device` of this rank to those of the others, as far as CUDA and NCCL's
/// environment tell (NCCL itself tells it to its log alone, NCCL_DEBUG=INFO): "NVLink to 3 ranks, network to
/// 4 ranks". Throws Error on all ranks when two of them use one GPU of a node, which NCCL refuses.
/// Collective.
std::string nccl_paths(Communicator& control, int device);

}  // namespace annulus::comm
