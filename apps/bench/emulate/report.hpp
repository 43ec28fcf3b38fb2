#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "options/sparsity.hpp"
#include "prediction/emulator/emulate.hpp"
#include "prediction/step/layer_traffic.hpp"

namespace annulus::bench {

/// Seconds of a pass, and of the rank that waits longest those in which it waits; seconds until all has ended
/// that travels beside the pass, 0 where nothing does.
struct PassTime {
  double time = 0, exposed = 0, beside = 0;
};

/// One pass on the emulated cluster, in the cluster's own time: what the wall clock said, over the time
/// scale.
struct EmulatedPass {
  PassTime predicted;  ///< by the simulator
  /// The fastest repetition: what else the machine does makes runs slower and never faster.
  PassTime best{.time = std::numeric_limits<double>::infinity()};
  std::vector<double> seconds;  ///< of each repetition

  void add(const emulator::Measured& measured, double scale);
};

struct EmulatedSchedule {
  std::string schedule, layout;
  std::string reason;  ///< why it cannot serve the case; empty when it can
  EmulatedPass forward, backward;

  double best() const { return forward.best.time + backward.best.time; }
  double predicted() const { return forward.predicted.time + backward.predicted.time; }
};

struct EmulationReport {
  plan::Problem problem;       ///< its layout is that of the first schedule
  simulator::Cluster cluster;  ///< not slowed down
  double time_scale = 1;
  bool synthetic_kernel = true, overlap = true;
  options::Sparsity sparsity;     ///< what kernels compute; columns and selecting take no time
  prediction::LayerBytes beside;  ///< what travels beside the passes
  std::string origin;             ///< of the cluster (options::rates_text)
  std::vector<EmulatedSchedule> schedules;

  /// The shortest predicted pass, and the longest, with what travels beside it; infinity and 0 where nothing
  /// is served.
  std::pair<double, double> predicted_range() const;
};

/// A row for each schedule: emulated against predicted, and by which factor the first one is slower.
std::string to_table(const EmulationReport& report);
nlohmann::json to_json(const EmulationReport& report);

}  // namespace annulus::bench
