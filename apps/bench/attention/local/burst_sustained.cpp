#include "bench/attention/local/burst_sustained.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <annulus/core/stopwatch.hpp>

namespace annulus::bench {
namespace {

using Exec = Kokkos::DefaultExecutionSpace;

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// What is enqueued next starts some milliseconds later: a thread of the GPU waits, as in torch.cuda._sleep,
/// by which apps/compare/gpu_rates.py holds other programs as long. A host that waited would let the GPU rest
/// on, and its clock may need time to come back.
void hold([[maybe_unused]] const Exec& exec) {
#ifdef KOKKOS_ENABLE_CUDA
  Kokkos::parallel_for(
      "annulus::bench::hold", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(int) {
        KOKKOS_IF_ON_DEVICE((constexpr long long cycles = 4'000'000; const long long start = clock64();
                             while (clock64() - start < cycles){}))
      });
#endif
}

}  // namespace

BurstSustained measure_rates(const Exec& exec, const RateOptions& options,
                             const std::function<void()>& work) {
  const auto repeat = [&](int calls) {
    for (int i = 0; i < calls; ++i) work();
  };
  const auto timed = [&](int calls) {
    Stopwatch<Exec> watch;
    watch.begin(exec);
    repeat(calls);
    watch.end(exec);
    const double seconds = watch.seconds();
    exec.fence("annulus::bench: timed calls are done");
    return seconds / calls;
  };
  BurstSustained rates;
  work();
  exec.fence("annulus::bench: the first call is done");
  for (int i = 0; i < options.repetitions; ++i) {
    sleep(options.pause);
    hold(exec);
    rates.burst.add(timed(1));
  }
  const auto calls_in = [&](double seconds) {
    constexpr double most = 1e6;
    return static_cast<int>(std::clamp(std::ceil(seconds / rates.burst.median()), 1.0, most));
  };
  repeat(calls_in(options.pause));
  rates.calls = calls_in(options.sustained);
  rates.sustained = timed(rates.calls);
  return rates;
}

}  // namespace annulus::bench
