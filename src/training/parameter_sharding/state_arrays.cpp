#include "training/parameter_sharding/state_arrays.hpp"

#include "training/optimizer/clip.hpp"
#include "training/optimizer/master_weights.hpp"

namespace annulus::parameter_sharding {

Partition partition_of(const model::ParameterMap& map, const StateLayout& layout) {
  return {map.units(), layout.stage == 0 ? 1 : layout.ranks, optimizer::NormBlocks<HostExec>::size};
}

ArrayTable state_arrays(const model::ParameterMap& map, const StateLayout& layout) {
  const Partition partition = partition_of(map, layout);
  const std::int64_t masters = layout.stage == 0 ? map.size() : partition.shard_size();
  ArrayTable table = optimizer::master_arrays({.offload = layout.offload}, masters, layout.weights);
  std::int64_t weights = 0;
  if (layout.stage == 0)
    weights = layout.weights == DType::f32 && !layout.offload ? 0 : masters;
  else if (layout.stage < 3)
    weights = partition.padded_size();
  else if (layout.offload)
    weights = masters;
  if (weights > 0)
    table.push_back({weights_label, MemoryCategory::parameters, weights,
                     static_cast<std::int64_t>(size_of(layout.weights))});
  return table;
}

ArrayTable held_gradients(const model::ParameterMap& map, const StateLayout& layout) {
  const Partition partition = partition_of(map, layout);
  ArrayTable held;
  const auto add = [&](std::int64_t elements) {
    held.push_back(
        {"annulus::parameter_sharding::gradients", MemoryCategory::gradients, elements, sizeof(float)});
  };
  if (layout.stage == 1) add(partition.shard_size());
  for (int unit = 0; unit < partition.units(); ++unit)
    add(layout.stage == 0   ? map.unit(unit).size()
        : layout.stage == 1 ? partition.padded_size(unit)
                            : partition.part_size(unit));
  return held;
}

PlannedArray unit_weights(const Partition& partition, const StateLayout& layout, int unit) {
  return {"annulus::parameter_sharding::unit_weights", MemoryCategory::parameters,
          partition.padded_size(unit), static_cast<std::int64_t>(size_of(layout.weights))};
}

PlannedArray unit_gradient(const Partition& partition, int unit) {
  return {"annulus::parameter_sharding::unit_gradients", MemoryCategory::gradients,
          partition.padded_size(unit), sizeof(float)};
}

}  // namespace annulus::parameter_sharding
