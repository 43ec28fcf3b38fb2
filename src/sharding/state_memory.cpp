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

}  // namespace

StateMemory state_memory(const model::ParameterMap& map, const StateLayout& layout) {
  using enum MemoryCategory;
  StateMemory memory;
  const std::int64_t weight = size_of_weight(layout);
  if (layout.stage == 0) {
    add_optimizer(memory, map.size(), layout);
    at(memory.device, gradients) = fp32_bytes * map.size();
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
  at(memory.device, gradients) = fp32_bytes * shard;
  if (stage < Stage::gradients)
    at(memory.device, gradients) += fp32_bytes * whole;
  else
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
