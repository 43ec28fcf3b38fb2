#include "prediction/measurement/sampling.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <vector>

#include "prediction/measurement/median.hpp"

namespace annulus::measurement {

namespace {

constexpr double filled = 5e-3;  // seconds of a repetition, unless one iteration takes longer
constexpr int most_iterations = 2000;

}  // namespace

Sample sample(comm::Communicator& communicator, const Sampling& sampling,
              const std::function<void(int)>& work) {
  const auto time = [&](int iterations) {
    communicator.barrier();
    const Kokkos::Timer timer;
    if (work) work(iterations);
    const double mine = work ? timer.seconds() : 0.0;
    // Every rank gets one value, so that all decide alike below.
    return std::max(1e-9, communicator.all_reduce_value(mine, comm::ReduceOp::max)) / iterations;
  };
  const auto late = [&] {
    return sampling.deadline != std::chrono::steady_clock::time_point::max() &&
           communicator.all_reduce_value<std::int32_t>(sampling.is_late() ? 1 : 0, comm::ReduceOp::max) > 0;
  };
  const double first = time(1);
  if (late()) return {first, first, first, 1, 1};
  const double once = time(1);
  const double wanted = std::min(filled, sampling.seconds / sampling.repetitions) / once;
  const int iterations =
      std::clamp(static_cast<int>(std::min<double>(most_iterations, wanted)), 1, most_iterations);
  for (double settled = 0; settled < sampling.settling && !late();) settled += time(iterations) * iterations;
  std::vector<double> times;
  double spent = 0;
  do {
    times.push_back(time(iterations));
    spent += times.back() * iterations;
  } while (std::ssize(times) < sampling.repetitions && spent < sampling.seconds && !late());
  const auto [min, max] = std::minmax_element(times.begin(), times.end());
  return {median(times), *min, *max, static_cast<int>(times.size()), iterations};
}

}  // namespace annulus::measurement
