#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/training/model/backward_memory.hpp>
#include <annulus/training/model/parameters.hpp>
#include <annulus/training/model/unit_calls.hpp>

namespace annulus::parameter_sharding {

/// Bytes that a rank holds of the state of a model for as long as a run lasts, by category. docs/memory.md
/// has the formulas.
struct StateMemory {
  MemoryBytes device{};  ///< in memory of the device
  MemoryBytes host{};    ///< in pinned memory of the host
};

/// How the state is held.
struct StateLayout {
  int stage = 0;                ///< 0: every rank holds everything; 1 to 3: see Stage
  int ranks = 1;                ///< that share a copy
  DType weights = DType::bf16;  ///< that the model computes with; or f32
  bool offload = false;         ///< optimizer::MasterOptions::offload
  bool native_sums = false;     ///< comm::Sums::native, of gradients
};

/// Elements of what a rank holds for as long as a run lasts: what is allocated, and what prediction counts.
struct StateArrays {
  std::int64_t masters = 0;  ///< beside two moments of as many
  std::int64_t weights = 0;  ///< for computing: all, or a shard; 0 where they are the masters, or come and go
};
StateArrays state_arrays(const model::ParameterMap& map, const StateLayout& layout);

/// The padding of shards counts; the lists by which the optimizer works, some thousandths of its state, do
/// not.
StateMemory state_memory(const model::ParameterMap& map, const StateLayout& layout);

/// The gradients that a rank holds until the optimizer's update, as they lie one behind the other: those of
/// all units, or this rank's shards of them; under Stage::optimizer this rank's shard of all units, then the
/// whole units. `passes`: of an optimizer step; gradients of the first one stay while the next one runs, so
/// that with several all layers need what they keep beside all gradients.
std::vector<model::HeldGradient> held_gradients(const model::ParameterMap& map, const StateLayout& layout,
                                                std::int64_t passes);
/// Which of them is that of a unit.
inline int held_gradient(const StateLayout& layout, int unit) {
  return layout.stage == 1 ? unit + 1 : unit;
}

/// How sums of gradients over ranks travel.
struct SumsLayout {
  Topology topology;  ///< of the ranks that share a copy
  bool on_host = false;
};

/// What a rank holds beside StateMemory::device, and takes for a moment: gathered weights, gradients of
/// units, and what other ranks contribute to sums.
struct PassingMemory {
  std::vector<MemoryBytes> calls;  ///< during each call, at most
  std::vector<std::int64_t> held;  ///< bytes of held_gradients that have begun, behind each call
  MemoryBytes sums{};              ///< while the sums behind the last pass are made
  MemoryBytes kept{};              ///< from the first optimizer step on, beside all others
};
/// During these calls of a model in the last of so many passes of an optimizer step.
PassingMemory passing_memory(const model::ParameterMap& map, const StateLayout& layout,
                             const SumsLayout& sums, std::span<const model::UnitCall> calls,
                             std::int64_t passes);

}  // namespace annulus::parameter_sharding
