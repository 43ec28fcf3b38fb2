#pragma once

#include <Kokkos_Core.hpp>
#include <functional>

#include "bench/common/times.hpp"

/// A GPU reaches its power limit within a tenth of a second of work and then lowers its clock, so what ran
/// before decides how fast a kernel runs.
namespace annulus::bench {

struct RateOptions {
  int repetitions = 5;     ///< single calls
  double pause = 0.5;      ///< seconds without work before each of them, and of work before `sustained`
  double sustained = 0.2;  ///< seconds of calls, about
};

struct BurstSustained {
  Times burst;           ///< seconds of a call that follows a pause
  double sustained = 0;  ///< seconds of a call behind and among others like it: their mean
  int calls = 0;         ///< of which it is the mean
};

/// Times `work`, which enqueues work on `exec`; a first call is not timed. The time is the device's: of all
/// that it does for a call, the gaps between kernels included. Launches happen while the device is held back
/// by some milliseconds or works on earlier calls, so that the host is ahead; on the host's own execution
/// space the time is that until the call returns.
BurstSustained measure_rates(const Kokkos::DefaultExecutionSpace& exec, const RateOptions& options,
                             const std::function<void()>& work);

}  // namespace annulus::bench
