#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/train/peak_memory.hpp>
#include <annulus/train/plan_memory.hpp>

#include "train/memory_planner.hpp"

namespace annulus::train {

/// Predicted peaks of a run, each the maximum over the ranks, as it measures them (PeakMemory).
struct PredictedPeaks {
  MemoryUse host, device;                       ///< peaks alone
  std::vector<forecast::MomentMemory> moments;  ///< of this rank
  std::string moment;                           ///< of this rank, at which most is held where it computes
  MemoryBytes at_once{};                        ///< of this rank, by category at that moment
  /// For the log.
  std::string text() const;
};
/// Of `config`, by the formulas of the planner. Collective.
PredictedPeaks predicted_peaks(comm::Communicator& world, MemoryPlanner& planner, const Config& config);
/// The same of one rank alone.
PredictedPeaks predicted_peaks(const forecast::UpdateMemory& memory, bool on_gpu);

/// `predicted_peak_bytes` of docs/formats/metrics.md.
nlohmann::json to_json(const PredictedPeaks& peaks);

}  // namespace annulus::train
