#pragma once

#include <thread>

namespace annulus::comm {

/// While it lives, which is while MPI starts, no rank waits longer than ANNULUS_START_TIMEOUT seconds (300;
/// 0: for ever). A rank that would looks at the other processes of its launcher on this machine, names those
/// that are stopped or missing, and ends with status 1; the launcher ends the others. MPI itself says nothing
/// while it starts. Seconds in which this process is itself stopped do not count. Does nothing in a process
/// that no launcher has started.
class StartWatch {
 public:
  /// Throws Error when ANNULUS_START_TIMEOUT is not a number.
  StartWatch();

 private:
  std::jthread thread_;
};

}  // namespace annulus::comm
