#include "bench/attention/local/step_check.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <annulus/core/range.hpp>

#include "bench/attention/check/verify.hpp"
#include "bench/attention/local/check.hpp"

namespace annulus::bench {
namespace step_check_detail {  // named: device compilers want kernels to have linkage

/// ‖x − expected‖ / ‖expected‖ over all elements; infinite where one is not finite and the other is.
template <class View, class Exec>
double difference(const Exec& exec, const View& x, const View& expected) {
  const auto* const a = x.data();
  const auto* const b = expected.data();
  double error = 0, norm = 0;
  Kokkos::parallel_reduce(
      "annulus::bench::difference", ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(x.size())),
      KOKKOS_LAMBDA(const std::int64_t i, double& e, double& n) {
        if (a[i] == b[i] && !Kokkos::isfinite(b[i])) return;  // lse of a row without keys
        const double y = static_cast<double>(b[i]), d = static_cast<double>(a[i]) - y;
        e += d * d;
        n += y * y;
      },
      error, norm);
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  // Against almost nothing a root mean square of 10⁻³ counts (ErrorNorm).
  return error == 0 ? 0.0 : std::sqrt(error / std::max(norm, 1e-6 * static_cast<double>(x.size())));
}

template <class Exec>
std::map<std::string, double> gradients(const Exec& exec, const LocalResults<Exec>& x,
                                        const LocalResults<Exec>& expected) {
  return {{"dq", difference(exec, *x.dq, *expected.dq)},
          {"dk", difference(exec, *x.dk, *expected.dk)},
          {"dv", difference(exec, *x.dv, *expected.dv)}};
}

}  // namespace step_check_detail

template <class T>
nlohmann::json check_steps(const LocalPasses<T>& passes,
                           const LocalResults<typename LocalPasses<T>::Exec>& running) {
  using step_check_detail::difference;
  using step_check_detail::gradients;
  const auto& exec = passes.exec();
  const auto& whole = passes.results();
  const RowRange all = passes.all_keys();
  const RowRange first{0, all.size() / 2}, second{all.size() / 2, all.size()};
  // Both sides are off from the exact result by what the check in double precision allows.
  const double limit = 2 * tolerance(dtype_of<T>);
  nlohmann::json report = {{"tolerance", limit}};
  const auto add = [&](const std::string& step, const std::map<std::string, double>& errors) {
    require_small(errors, step + ", beside a pass in one piece,", limit);
    report[step] = errors;
  };
  attention::KernelOptions fresh;
  fresh.fresh_out = fresh.fresh_dq = fresh.fresh_dkv = true;

  passes.forward(first, running, fresh);
  passes.forward(second, running, {});
  add("forward_merging", {{"out", difference(exec, *running.out, *whole.out)},
                          {"lse", difference(exec, *running.lse, *whole.lse)}});
  passes.forward(all, running, fresh);
  add("forward_first", {{"out", difference(exec, *running.out, *whole.out)},
                        {"lse", difference(exec, *running.lse, *whole.lse)}});
  passes.row_dot();
  for (const bool deterministic : {true, false}) {
    const std::string order = deterministic ? "" : "_any_order";
    attention::KernelOptions adding;
    adding.deterministic = fresh.deterministic = deterministic;
    passes.backward(all, running, fresh);
    add("backward_finished" + order, gradients(exec, running, whole));
    for (const auto* const gradient : {&running.dq, &running.dk, &running.dv})
      Kokkos::deep_copy(exec, **gradient, 0.0f);
    passes.backward(first, running, adding);
    passes.backward(second, running, adding);
    add("backward_running" + order, gradients(exec, running, whole));
  }
  return report;
}

#define ANNULUS_INSTANTIATE(T)                               \
  template nlohmann::json check_steps(const LocalPasses<T>&, \
                                      const LocalResults<typename LocalPasses<T>::Exec>&);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
