#include "bench/attention/local/ring_steps.hpp"

#include <algorithm>

namespace annulus::bench {
namespace {

using nlohmann::json;

bool is_any_order(const std::string& step) {
  return step.ends_with("_any_order");
}

json to_json(const BurstSustained& rates, double flops) {
  return {
      {"flops", flops},
      {"burst",
       {{"seconds", rates.burst.median()},
        {"seconds_min", rates.burst.least()},
        {"seconds_max", rates.burst.most()},
        {"tflops", flops / rates.burst.median() * 1e-12}}},
      {"sustained",
       {{"seconds", rates.sustained}, {"calls", rates.calls}, {"tflops", flops / rates.sustained * 1e-12}}}};
}

}  // namespace

const std::vector<std::string>& ring_step_names() {
  static const std::vector<std::string> names = {"forward_first",     "forward_merging",
                                                 "backward_running",  "backward_running_any_order",
                                                 "backward_finished", "backward_finished_any_order"};
  return names;
}

template <class T>
json measure_ring_steps(const LocalPasses<T>& passes,
                        const LocalResults<typename LocalPasses<T>::Exec>& running,
                        const std::vector<std::string>& names, const RateOptions& options, double pairs) {
  const RowRange all = passes.all_keys();
  const double forward_flops = 4.0 * pairs * passes.problem().head_dim;
  json steps = json::object();
  passes.row_dot();
  for (const std::string& step : ring_step_names()) {
    if (std::ranges::find(names, step) == names.end()) continue;
    // The others have one order, whatever is asked for.
    if (is_any_order(step) && passes.kernel() != attention::Kernel::hopper) continue;
    const bool is_forward = step.starts_with("forward"), is_finished = step.starts_with("backward_finished");
    attention::KernelOptions o;
    o.fresh_out = step == "forward_first";
    o.fresh_dq = o.fresh_dkv = is_finished;
    o.deterministic = !is_any_order(step);
    const auto call = [&] {
      if (is_forward) return passes.forward(all, running, o);
      if (is_finished) passes.row_dot();
      passes.backward(all, running, o);
    };
    steps[step] = to_json(measure_rates(passes.exec(), options, call),
                          is_forward ? forward_flops : 2.5 * forward_flops);
  }
  return steps;
}

#define ANNULUS_INSTANTIATE(T)                                                         \
  template json measure_ring_steps(const LocalPasses<T>&,                              \
                                   const LocalResults<typename LocalPasses<T>::Exec>&, \
                                   const std::vector<std::string>&, const RateOptions&, double);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
