#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "training/model/parameters.hpp"

namespace annulus::training {

/// What a rank holds that others hold too.
struct Copies {
  /// One for each tensor of the parameters, then, where held, of either moment.
  std::vector<std::uint64_t> hashes;
  int place = 0;  ///< ranks with the same number hold the same tensors
};

/// What a rank computes on.
struct ReplicaHardware {
  std::uint64_t fingerprint = 0;  ///< only ranks on the same hardware hold the same bits (hardware_of)
  bool on_gpu = false;
};

/// Throws Error, the same on all ranks, unless all ranks of one place on the same hardware hold the same
/// bits. The message begins with `when` and names the first tensor that differs and who holds another one
/// than most, with machine and GPU; where no side has a majority, all sides. Costs an all-gather of 16 bytes
/// a rank; only on a difference the hashes themselves are exchanged. Collective.
void require_same_replicas(comm::Communicator& world, const model::ParameterMap& map, const Copies& mine,
                           const ReplicaHardware& hardware, const std::string& when);

}  // namespace annulus::training
