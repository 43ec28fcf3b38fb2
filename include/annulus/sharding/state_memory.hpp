#pragma once

#include <annulus/base/dtype.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/model/parameters.hpp>

namespace annulus::sharding {

/// Bytes that a rank holds of the state of a model, by category. docs/memory.md has the formulas.
struct StateMemory {
  MemoryBytes device{};   ///< in memory of the device, for as long as a run lasts
  MemoryBytes passing{};  ///< the same, at most, while an optimizer step is made
  MemoryBytes host{};     ///< in pinned memory of the host
};

/// How the state is held.
struct StateLayout {
  int stage = 0;                ///< 0: every rank holds everything; 1 to 3: see Stage
  int ranks = 1;                ///< that share a copy
  DType weights = DType::bf16;  ///< that the model computes with; or f32
  bool offload = false;         ///< optim::MasterOptions::offload
};

/// The padding of shards counts; the lists by which the optimizer works, some thousandths of its state, do
/// not.
StateMemory state_memory(const model::ParameterMap& map, const StateLayout& layout);

}  // namespace annulus::sharding
