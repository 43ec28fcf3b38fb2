#pragma once

#include <chrono>
#include <functional>

#include <annulus/attention/comm/communicator.hpp>

/// Measures what links and kernels reach, on the ranks of a run and with the code that a run uses: the
/// numbers from which simulator:: predicts.
namespace annulus::measurement {

/// When enough has been measured of one point.
struct Sampling {
  int repetitions = 10;  ///< at most
  double seconds = 0.5;  ///< no further repetition after so long
  /// Seconds of the same work that come first: a GPU at its power limit lowers its clock within 0.1 s.
  double settling = 0;
  /// From then on one run of a point is its time, whichever rank is the first to be late.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();

  bool is_late() const { return std::chrono::steady_clock::now() >= deadline; }
};

/// Seconds of one iteration, over the repetitions. Each is the time of the slowest rank.
struct Sample {
  double median = 0, min = 0, max = 0;
  int repetitions = 0, iterations = 0;  ///< of each repetition
};

/// Times `work`, which does its argument's number of iterations; ranks that have nothing to do hand over an
/// empty function. First iterations that are not counted: one, and as many as `settling` takes. A repetition
/// takes as many iterations as fill some milliseconds, so that neither clock nor barrier counts. Collective;
/// all ranks get the same.
Sample sample(comm::Communicator& communicator, const Sampling& sampling,
              const std::function<void(int iterations)>& work);

}  // namespace annulus::measurement
