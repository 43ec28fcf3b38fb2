#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/training/run/config.hpp>

#include "training/run/planner/plan_memory.hpp"

namespace annulus::training {

/// Lengths are multiples of so many tokens, "1k".
inline constexpr std::int64_t longest_unit = 1024;

/// The longest sequence that fits with one policy.
struct LongestSequence {
  std::int64_t tokens = 0;  ///< a multiple of longest_unit; 0: not even a token a rank (or longest_unit) fits
  /// The policy at that length, or at the shortest where nothing fits; without its time.
  PlannedPolicy policy;
  /// What a longer one lacks: memory of the device or of the host, or it is refused, whatever memory there
  /// is.
  enum class Limit : std::uint8_t { device, host, refusal } limit = Limit::device;
  std::string refusal = {};  ///< why

  bool host_limits() const { return limit == Limit::host; }
  bool is_refused() const { return limit == Limit::refusal; }
};

struct LongestSequences {
  std::int64_t libraries = 0, spare = 0;  ///< as MemoryPlan has them
  std::vector<LongestSequence> policies;  ///< in the order of MemoryPlanner::choices
};

/// Searches for every policy of the configuration, whose data.sequence_length does not count: within a 64th
/// of the length, or longest_unit, from below. Where schedule or layout are auto each length has its own, and
/// each policy for which auto chooses others.
/// Throws Error as plan_memory does, and where nothing limits a sequence: a GPU without gpu_memory, a CPU
/// without host_memory.
LongestSequences longest_sequences(const Config& config, const PlannedMachine& machine);

/// Time of an optimizer step with that policy and sequence.
prediction::UpdateTime time_of(const LongestSequence& longest, const Config& config,
                               const PlannedMachine& machine);

}  // namespace annulus::training
