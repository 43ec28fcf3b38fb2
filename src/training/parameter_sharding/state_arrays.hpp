#pragma once

#include <annulus/base/dtype.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "training/model/parameters.hpp"
#include "training/parameter_sharding/partition.hpp"

namespace annulus::parameter_sharding {

/// How the state is held.
struct StateLayout {
  int stage = 0;                ///< 0: every rank holds everything; 1 to 3: see Stage
  int ranks = 1;                ///< that share a copy
  DType weights = DType::bf16;  ///< that the model computes with; or f32
  bool offload = false;         ///< optimizer::MasterOptions::offload
  bool native_sums = false;     ///< comm::Sums::native, of gradients
};

/// Who owns which part of each unit; one rank owns all where the state is whole.
Partition partition_of(const model::ParameterMap& map, const StateLayout& layout);

/// What a rank holds of master weights, moments and weights for as long as a run lasts. The padding of shards
/// counts. The lists by which the optimizer and the norm of gradients work, some thousandths of the state,
/// are in no table.
ArrayTable state_arrays(const model::ParameterMap& map, const StateLayout& layout);

/// Weights that a model computes with, in state_arrays: all, or a shard. Not there where they are the
/// masters, or come and go.
inline constexpr const char* weights_label = "annulus::parameter_sharding::weights";

/// Gradients that a rank holds until the optimizer's update, in BackwardMemory, by their addresses: those of
/// all units, or this rank's shards of them; in Stage::optimizer this rank's shard of all units, then the
/// whole units.
ArrayTable held_gradients(const model::ParameterMap& map, const StateLayout& layout);
/// Which of them is that of a unit; unit −1 is this rank's shard in Stage::optimizer.
inline int held_gradient(const StateLayout& layout, int unit) {
  return layout.stage == 1 ? unit + 1 : unit;
}

/// What is gathered and summed of a unit, with padding.
PlannedArray unit_weights(const Partition& partition, const StateLayout& layout, int unit);
PlannedArray unit_gradient(const Partition& partition, int unit);

}  // namespace annulus::parameter_sharding
