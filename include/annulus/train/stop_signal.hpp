#pragma once

namespace annulus::train {

/// While it lives, SIGTERM, SIGUSR1 and SIGINT do not end the process but are remembered: the training loop
/// looks at the end of each step, saves and stops. A second SIGINT ends the process at once. Several at the
/// same time (ranks that are threads) see the same signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that came first, 0 if none has.
  int received() const;
};

/// "SIGTERM" and so on.
const char* signal_name(int signal);

}  // namespace annulus::train
