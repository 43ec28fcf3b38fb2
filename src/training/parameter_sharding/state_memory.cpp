#include <annulus/training/parameter_sharding/state_memory.hpp>

#include <algorithm>

#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/memory_bytes.hpp"
#include "training/parameter_sharding/partition.hpp"
#include "training/parameter_sharding/sharded_parameters.hpp"

namespace annulus::parameter_sharding {

namespace {

Partition partition_of(const model::ParameterMap& map, const StateLayout& layout) {
  return {map.units(), layout.stage == 0 ? 1 : layout.ranks, optimizer::NormBlocks<HostExec>::size};
}

}  // namespace

std::vector<model::HeldGradient> held_gradients(const model::ParameterMap& map, const StateLayout& layout,
                                                std::int64_t passes) {
  const int layers = map.final_unit() - 1;
  const bool tied = map.lm_head_unit() != map.final_unit();
  // The model adds to what is held, or a sum over ranks leaves it there: a native one writes as soon as it
  // begins, behind the unit's backward pass, one in rank order when it is complete, behind the next unit's.
  const bool in_place = layout.stage < 2;
  const int behind = in_place ? 0 : layout.native_sums ? 1 : 2;
  const Partition partition = partition_of(map, layout);
  const auto layers_before = [&](int unit) {
    if (passes > 1) return layers;
    // The tied LM head's gradient is made before those of layers, and is reduced behind them.
    if (unit == map.embedding_unit()) return in_place && tied ? layers : 0;
    return std::clamp(unit - behind, 0, layers);
  };
  std::vector<model::HeldGradient> gradients;
  if (layout.stage == 1)
    gradients.push_back({.elements = partition.shard_size(), .layers_before = passes > 1 ? layers : 0});
  for (int unit = 0; unit < partition.units(); ++unit) {
    const std::int64_t elements = layout.stage == 0   ? map.unit(unit).size()
                                  : layout.stage == 1 ? partition.padded_size(unit)
                                                      : partition.part_size(unit);
    gradients.push_back({.elements = elements, .layers_before = layers_before(unit)});
  }
  return gradients;
}

StateArrays state_arrays(const model::ParameterMap& map, const StateLayout& layout) {
  // A model in fp32 computes with the masters, where they are on the device.
  if (layout.stage == 0)
    return {map.size(), layout.weights == DType::f32 && !layout.offload ? 0 : map.size()};
  const Partition partition = partition_of(map, layout);
  const bool whole = static_cast<Stage>(layout.stage) < Stage::parameters;
  return {partition.shard_size(), whole            ? partition.padded_size()
                                  : layout.offload ? partition.shard_size()
                                                   : 0};
}

StateMemory state_memory(const model::ParameterMap& map, const StateLayout& layout) {
  using enum MemoryCategory;
  const StateArrays arrays = state_arrays(map, layout);
  const auto weight = static_cast<std::int64_t>(size_of(layout.weights));
  StateMemory memory;
  MemoryBytes& optimizer_memory = layout.offload ? memory.host : memory.device;
  at(optimizer_memory, parameters) = fp32_bytes * arrays.masters;
  at(optimizer_memory, optimizer) = 2 * fp32_bytes * arrays.masters;
  // Gradients that come down and weights that go up, two pieces at a time; fp32 weights are the masters.
  if (layout.offload)
    at(memory.host, workspace) = 2 * std::min(optimizer::MasterOptions().piece, arrays.masters) *
                                 (fp32_bytes + (layout.weights == DType::f32 ? 0 : weight));
  at(memory.device, parameters) += weight * arrays.weights;
  at(memory.device, gradients) = fp32_bytes * model::elements_of(held_gradients(map, layout, 1));
  return memory;
}

}  // namespace annulus::parameter_sharding
