#pragma once

#include <cstdint>
#include <optional>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/training/model/activation_memory.hpp>
#include <annulus/training/model/config.hpp>
#include <annulus/training/model/recompute.hpp>
#include <annulus/training/parameter_sharding/state_memory.hpp>

/// What an optimizer step of a run takes, memory and time, from the formulas of the modules that do it. No
/// run need be there, nor the ranks or GPUs of it.
namespace annulus::prediction {

/// What all ranks of a run have alike.
struct Setting {
  model::Config model;
  DType type = DType::bf16;  ///< of weights and activations
  bool on_gpu = true;
  Topology topology;        ///< of all ranks
  std::int64_t tokens = 0;  ///< of a sequence
  int sequences = 1;        ///< of a pass
  std::int64_t passes = 1;  ///< of an optimizer step
  model::ActivationOptions activations;
  std::optional<sparsity::Options> sparsity = std::nullopt;  ///< of the layers that select pairs
  int sparse_layers = 0;                                     ///< these
  parameter_sharding::StateLayout state;
  std::int64_t snapshot_bytes = 0;  ///< of the host: from which checkpoints are written
};

/// What differs from rank to rank.
struct RankShare {
  model::PassRows rows;
  std::int64_t exchange_bytes = 0;  ///< executor::exchange_memory
  std::int64_t data_bytes = 0;      ///< of the host: sequences that were read
};

}  // namespace annulus::prediction
