#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/cluster.hpp>

namespace annulus::bench {

/// One pass on the emulated cluster, in the cluster's own time: what the wall clock said, over the time
/// scale.
struct EmulatedPass {
  std::vector<double> seconds;   ///< of each repetition: until the last rank is done
  std::vector<double> exposed;   ///< of each repetition: waits of the rank that waits longest
  double predicted = 0;          ///< by the simulator
  double predicted_exposed = 0;  ///< likewise, of the rank that waits longest

  /// The fastest repetition: what else the machine does makes runs slower and never faster.
  double best() const;
  double best_exposed() const;
};

struct EmulatedSchedule {
  std::string schedule, layout;
  std::string reason;  ///< why it cannot serve the case; empty when it can
  EmulatedPass forward, backward;

  double best() const { return forward.best() + backward.best(); }
  double predicted() const { return forward.predicted + backward.predicted; }
};

struct EmulationReport {
  plan::Problem problem;      ///< its layout is that of the first schedule
  simulate::Cluster cluster;  ///< not slowed down
  double time_scale = 1;
  bool synthetic_kernel = true, overlap = true;
  std::string origin;  ///< of the cluster (options::rates_text)
  std::vector<EmulatedSchedule> schedules;
};

/// A row for each schedule: emulated against predicted, and by which factor the first one is slower.
std::string to_table(const EmulationReport& report);
nlohmann::json to_json(const EmulationReport& report);

}  // namespace annulus::bench
