#include <annulus/sharding/state_memory.hpp>

#include <algorithm>

#include <annulus/optim/clip.hpp>
#include <annulus/sharding/partition.hpp>
#include <annulus/sharding/sharded_parameters.hpp>

#include "sharding/memory_bytes.hpp"

namespace annulus::sharding {

namespace {

std::int64_t size_of_weight(const StateLayout& layout) {
  return static_cast<std::int64_t>(size_of(layout.weights));
}

/// Masters and moments of `elements`.
void add_optimizer(StateMemory& memory, std::int64_t elements, const StateLayout& layout) {
  using enum MemoryCategory;
  MemoryBytes& to = layout.offload ? memory.host : memory.device;
  at(to, parameters) += fp32_bytes * elements;
  at(to, optimizer) += 2 * fp32_bytes * elements;
  // Gradients that come down and weights that go up, two pieces at a time; fp32 weights are the masters.
  if (layout.offload)
    at(to, workspace) += 2 * std::min(optim::MasterOptions().piece, elements) *
                         (fp32_bytes + (layout.weights == DType::f32 ? 0 : size_of_weight(layout)));
}

std::int64_t bytes_of_held(const model::ParameterMap& map, const StateLayout& layout) {
  return fp32_bytes * model::elements_of(held_gradients(map, layout, 1));
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
  const Partition partition(map.units(), layout.stage == 0 ? 1 : layout.ranks,
                            optim::NormBlocks<HostExec>::size);
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

StateMemory state_memory(const model::ParameterMap& map, const StateLayout& layout) {
  using enum MemoryCategory;
  StateMemory memory;
  const std::int64_t weight = size_of_weight(layout);
  if (layout.stage == 0) {
    add_optimizer(memory, map.size(), layout);
    at(memory.device, gradients) = bytes_of_held(map, layout);
    // A model in fp32 computes with the masters, where they are on the device.
    if (layout.weights != DType::f32 || layout.offload) at(memory.device, parameters) += weight * map.size();
    return memory;
  }
  const auto stage = static_cast<Stage>(layout.stage);
  const Partition partition(map.units(), layout.ranks, optim::NormBlocks<HostExec>::size);
  const std::int64_t shard = partition.shard_size(), whole = partition.padded_size();
  std::int64_t unit = 0;  // the largest
  for (int i = 0; i < partition.units(); ++i) unit = std::max(unit, partition.padded_size(i));

  add_optimizer(memory, shard, layout);
  at(memory.device, gradients) = bytes_of_held(map, layout);
  if (stage >= Stage::gradients)
    at(memory.passing, gradients) =
        2 * fp32_bytes * unit;  // that of one unit is made, that of another one reduced
  if (stage < Stage::parameters) {
    at(memory.device, parameters) += weight * whole;
  } else {
    if (layout.offload) at(memory.device, parameters) += weight * shard;
    at(memory.passing, parameters) = 2 * weight * unit;  // those in use, and those of the next unit
  }
  return memory;
}

}  // namespace annulus::sharding
