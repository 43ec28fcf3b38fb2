#include "bench/attention/local/ring_steps.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "base/kokkos/execution/stopwatch.hpp"
#include "bench/common/times.hpp"

namespace annulus::bench {
namespace {

using nlohmann::json;
using Exec = Kokkos::DefaultExecutionSpace;

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// What is enqueued next starts some milliseconds later: a thread of the GPU waits, as in torch.cuda._sleep,
/// by which apps/compare/local_peers.py holds other programs as long. A host that waited would let the GPU
/// rest on, and its clock may need time to come back.
void hold([[maybe_unused]] const Exec& exec) {
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
  Kokkos::parallel_for(
      "annulus::bench::hold", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(int) {
        KOKKOS_IF_ON_DEVICE((constexpr long long cycles = 4'000'000; const long long start = clock64();
                             while (clock64() - start < cycles){}))
      });
#endif
}

/// A GPU reaches its power limit within a tenth of a second of work and then lowers its clock, so what ran
/// before decides how fast a kernel runs.
///
/// Times `work`, which enqueues work on `exec`; a first call is not timed. The time is the device's: of all
/// that it does for a call, the gaps between kernels included. Launches happen while the device is held back
/// by some milliseconds or works on earlier calls, so that the host is ahead; on the host's own execution
/// space the time is that until the call returns.
json measure_rates(const Exec& exec, const AttentionOptions& options, const std::function<void()>& work,
                   double flops) {
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
  RepeatedTimes burst;
  work();
  exec.fence("annulus::bench: the first call is done");
  for (int i = 0; i < options.repetitions; ++i) {
    sleep(options.pause);
    hold(exec);
    burst.add(timed(1));
  }
  const auto calls_in = [&](double seconds) {
    constexpr double most = 1e6;
    return static_cast<int>(std::clamp(std::ceil(seconds / burst.median()), 1.0, most));
  };
  repeat(calls_in(options.pause));
  const int calls = calls_in(options.sustained);
  const double sustained = timed(calls);
  const auto rate = [flops](double seconds) { return flops / seconds * 1e-12; };
  return {{"flops", flops},
          {"burst",
           {{"seconds", burst.median()},
            {"seconds_min", burst.least()},
            {"seconds_max", burst.most()},
            {"tflops", rate(burst.median())}}},
          {"sustained", {{"seconds", sustained}, {"calls", calls}, {"tflops", rate(sustained)}}}};
}

bool is_any_order(const std::string& step) {
  return step.ends_with("_any_order");
}

}  // namespace

const std::vector<std::string>& ring_step_names() {
  static const std::vector<std::string> names = {"forward_first",
                                                 "forward_merging",
                                                 "forward_finished",
                                                 "backward_running",
                                                 "backward_running_any_order",
                                                 "backward_finished",
                                                 "backward_finished_any_order"};
  return names;
}

template <class T>
json measure_ring_steps(const LocalPasses<T>& passes, const typename LocalPasses<T>::Results& running,
                        const AttentionOptions& options, double pairs) {
  const std::vector<std::string>& names = options.steps;
  const bool all_steps = names.empty() || names.front() == "all";
  const RowRange all = passes.all_keys();
  json steps = json::object();
  passes.row_dot();
  for (const std::string& step : ring_step_names()) {
    if (!all_steps && std::ranges::find(names, step) == names.end()) continue;
    // The others have one order, whatever is asked for.
    if (is_any_order(step) && passes.kernel() != attention::Kernel::hopper) continue;
    const bool is_forward = step.starts_with("forward"), is_finished = step.starts_with("backward_finished");
    attention::KernelOptions o;
    const bool finishes = step == "forward_finished";
    const Owned<Array4<T, Exec>> finished = finishes ? passes.finished() : Owned<Array4<T, Exec>>();
    o.fresh_out = finishes || step == "forward_first";
    o.fresh_dq = o.fresh_dkv = is_finished;
    o.deterministic = !is_any_order(step);
    const auto call = [&] {
      if (is_forward) return passes.forward(all, running, o, *finished);
      if (is_finished) passes.row_dot();
      passes.backward(all, running, o);
    };
    const double flops =
        pairs * passes.problem().flops_of_pair(is_forward ? plan::Pass::forward : plan::Pass::backward);
    steps[step] = measure_rates(passes.exec(), options, call, flops);
  }
  return steps;
}

#define ANNULUS_INSTANTIATE(T)                                                            \
  template json measure_ring_steps(const LocalPasses<T>&, const LocalPasses<T>::Results&, \
                                   const AttentionOptions&, double);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
