#include "bench/attention/local/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/range.hpp"
#include "bench/common/samples.hpp"

namespace annulus::bench {
namespace local_check_detail {  // named: device compilers want kernels to have linkage

constexpr std::int64_t small_tokens = 384;

/// The terms of a mask that have a meaning for any length.
std::string mask_of_any_length(std::string_view text) {
  std::string kept;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view term = text.substr(begin, end - begin);
    if (!term.starts_with("documents") && !term.starts_with("blocks")) {
      kept += (kept.empty() ? "" : "+") + std::string(term);
    }
    begin = end + 1;
  }
  return kept.empty() ? "causal" : kept;
}

/// Throws Error naming the tensor and `what` it is of, where a relative error is beyond `limit`.
void require_small(const Errors& errors, const std::string& what, double limit) {
  for (const auto& [name, error] : errors) {
    require(error <= limit,
            "--local: {} of {} differs by a relative error of {:.2e}, more than {:.0e}: the kernel is wrong, "
            "so it is not timed; try --kernel portable and report this",
            name, what, error, limit);
  }
}

/// The errors of both passes, which it runs.
template <class T>
CheckResult check_passes(LocalPasses<T>& passes, bool every_row, const std::string& what) {
  passes.forward();
  passes.backward();
  const plan::Problem& problem = passes.problem();
  CheckResult result = check_rows<T>(*comm::make_null(), problem, nullptr, passes.tensors(), every_row, true);
  require_small(result.errors, what + ", beside double precision,", result.tolerance);
  return result;
}

/// ‖x − expected‖ / ‖expected‖ over all elements; infinite where one is not finite and the other is.
template <class View, class Exec>
double difference(const Exec& exec, const View& x, const View& expected) {
  const auto* const a = x.data();
  const auto* const b = expected.data();
  ErrorNorm sums;
  Kokkos::parallel_reduce(
      "annulus::bench::difference", ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(x.size())),
      KOKKOS_LAMBDA(const std::int64_t i, double& e, double& n) {
        if (float(a[i]) == float(b[i]) && !Kokkos::isfinite(float(b[i])))
          return;  // lse of a row without keys
        const double y = double(float(b[i])), d = double(float(a[i])) - y;
        e += d * d;
        n += y * y;
      },
      sums.error, sums.norm);
  sums.count = static_cast<double>(x.size());
  return std::isfinite(sums.error) ? sums.relative() : std::numeric_limits<double>::infinity();
}

}  // namespace local_check_detail

template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel) {
  using namespace local_check_detail;
  plan::Problem small = passes.problem();
  small.mask =
      Mask::parse(mask_of_any_length(small.mask.to_string()), std::min(small_tokens, small.mask.tokens()));
  small.batch = 1;
  small.kv_heads = std::min(small.kv_heads, 2);
  small.heads = small.kv_heads * passes.problem().group();
  LocalPasses<T> of_small(small, seed, kernel, passes.soft_cap());
  const CheckResult whole = check_passes(of_small, true, "a short sequence"),
                    sampled = check_passes(passes, false, "sampled rows");
  return {{"tolerance", whole.tolerance},
          {"short_sequence", {{"tokens", small.mask.tokens()}, {"errors", whole.errors}}},
          {"sampled_rows", {{"of_a_head", sampled.rows_of_head}, {"errors", sampled.errors}}}};
}

template <class T>
nlohmann::json check_steps(const LocalPasses<T>& passes, const typename LocalPasses<T>::Results& running) {
  using namespace local_check_detail;
  const auto& exec = passes.exec();
  const auto& whole = passes.results();
  const RowRange all = passes.all_keys();
  const RowRange first{0, all.size() / 2}, second{all.size() / 2, all.size()};
  // Both sides are off from the exact result by what the check in double precision allows.
  const double limit = 2 * tolerance(dtype_of<T>);
  nlohmann::json report = {{"tolerance", limit}};
  const auto add = [&](const std::string& step, const Errors& errors) {
    require_small(errors, step + ", beside a pass in one piece,", limit);
    report[step] = errors;
  };
  const auto results = [&] {
    return Errors{{"out", difference(exec, *running.out, *whole.out)},
                  {"lse", difference(exec, *running.lse, *whole.lse)}};
  };
  const auto gradients = [&] {
    return Errors{{"dq", difference(exec, *running.dq, *whole.dq)},
                  {"dk", difference(exec, *running.dk, *whole.dk)},
                  {"dv", difference(exec, *running.dv, *whole.dv)}};
  };
  attention::KernelOptions fresh;
  fresh.fresh_out = fresh.fresh_dq = fresh.fresh_dkv = true;

  passes.forward(first, running, fresh);
  passes.forward(second, running, {});
  add("forward_merging", results());
  passes.forward(all, running, fresh);
  add("forward_first", results());
  {  // their memory is free again for the gradients
    using Exec = typename LocalPasses<T>::Exec;
    const Owned<Array4<T, Exec>> rounded = passes.finished(), finished = passes.finished();
    attention::convert<Exec, T>(exec, *running.out, *rounded);
    passes.forward(all, running, fresh, *finished);
    add("forward_finished", {{"out", difference(exec, *finished, *rounded)},
                             {"lse", difference(exec, *running.lse, *whole.lse)}});
  }
  passes.row_dot();
  for (const bool deterministic : {true, false}) {
    const std::string order = deterministic ? "" : "_any_order";
    attention::KernelOptions adding;
    adding.deterministic = fresh.deterministic = deterministic;
    passes.backward(all, running, fresh);
    add("backward_finished" + order, gradients());
    for (const auto* const gradient : {&running.dq, &running.dk, &running.dv})
      Kokkos::deep_copy(exec, **gradient, 0.0f);
    passes.backward(first, running, adding);
    passes.backward(second, running, adding);
    add("backward_running" + order, gradients());
  }
  return report;
}

#define ANNULUS_INSTANTIATE(T)                                                            \
  template nlohmann::json check_local(LocalPasses<T>&, std::uint64_t, attention::Kernel); \
  template nlohmann::json check_steps(const LocalPasses<T>&, const LocalPasses<T>::Results&);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
