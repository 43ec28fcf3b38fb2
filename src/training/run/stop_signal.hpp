#pragma once

#include <string>

namespace annulus::training {

/// While it lives, SIGTERM, SIGUSR1, SIGINT, SIGHUP and SIGXCPU do not end the process but are remembered:
/// the training loop looks at the end of each step, saves and stops. A second SIGINT, and a SIGTERM two
/// seconds or more after the first, end the process at once. What is ignored at the start (nohup) stays
/// ignored, but for SIGUSR1. Several at the same time (ranks that are threads) see the same signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that came first, 0 if none has.
  int received() const;
};

/// "SIGTERM" and so on: the name of the signal that somebody sent for this one to come: `./annulus run` turns
/// what it gets into SIGUSR1 and leaves the name in the file that ANNULUS_STOP_CAUSE names. Without it the
/// name of `signal`.
std::string stop_cause(int signal);

}  // namespace annulus::training
