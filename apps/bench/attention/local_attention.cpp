#include "bench/attention/local_attention.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include <annulus/base/version.hpp>

#include "base/kokkos/execution/processor.hpp"
#include "bench/attention/local/check.hpp"
#include "bench/attention/local/ring_steps.hpp"
#include "bench/common/times.hpp"
#include "options/problem.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/linalg/matmul.hpp"

namespace annulus::bench {
namespace {

using nlohmann::json;

template <class Action>
void time(RepeatedTimes* times, const Action& action) {
  const Kokkos::Timer timer;
  action();
  if (times != nullptr) times->add(timer.seconds());
}

/// The product of two square matrices by the host's BLAS, on as many threads as the kernels have.
class Sgemm {
 public:
  static constexpr int size = 2048;
  static constexpr double flops = 2.0 * size * size * size;

  Sgemm() {
    Kokkos::deep_copy(exec_, a_, 1.0f);
    Kokkos::deep_copy(exec_, b_, 0.5f);
  }
  void operator()() {
    linalg::matmul<HostExec, float, float>(exec_, {}, a_, b_, c_);
    exec_.fence("annulus::bench: sgemm is done");
  }

 private:
  using Square = Array2<float, HostExec>;
  HostExec exec_;
  Square a_{"annulus::bench::sgemm_a", size, size}, b_{"annulus::bench::sgemm_b", size, size},
      c_{"annulus::bench::sgemm_c", size, size};
};

/// A GPU has no BLAS of the host beside it.
bool times_steps(const AttentionOptions& o) {
  return has_device || !o.steps.empty();
}

json rate(const RepeatedTimes& times, double flops) {
  return {{"seconds", times.median()},
          {"seconds_min", times.least()},
          {"seconds_max", times.most()},
          {"flops", flops},
          {"gflops", flops / times.median() * 1e-9}};
}

json pass(const RepeatedTimes& times, double flops, const RepeatedTimes& sgemm) {
  json entry = rate(times, flops);
  entry["share_of_sgemm"] = flops / times.median() / (Sgemm::flops / sgemm.median());
  entry["share_of_sgemm_fastest"] = flops / times.least() / (Sgemm::flops / sgemm.least());
  return entry;
}

/// sgemm and both passes in turns.
template <class T>
void measure_beside_sgemm(LocalPasses<T>& passes, int repetitions, double pairs, json& report) {
  Sgemm multiply;
  RepeatedTimes sgemm, forward, backward;
  for (int round = 0; round <= repetitions; ++round) {
    const bool timed = round > 0;  // the first round warms up
    time(timed ? &sgemm : nullptr, [&] { multiply(); });
    time(timed ? &forward : nullptr, [&] { passes.forward(); });
    time(timed ? &sgemm : nullptr, [&] { multiply(); });
    time(timed ? &backward : nullptr, [&] { passes.backward(); });
  }
  const auto flops = [&](plan::Pass of) { return pairs * passes.problem().flops_of_pair(of); };
  report["forward"] = pass(forward, flops(plan::Pass::forward), sgemm);
  report["backward"] = pass(backward, flops(plan::Pass::backward), sgemm);
  report["sgemm"] = rate(sgemm, Sgemm::flops);
  report["sgemm_gflops"] = Sgemm::flops / sgemm.median() * 1e-9;
  report["blas"] = linalg::host_blas_kernels();
  report["sgemm"]["size"] = Sgemm::size;
  if (const char* core = std::getenv("OPENBLAS_CORETYPE")) {
    report["sgemm"]["note"] =
        std::string("OPENBLAS_CORETYPE=") + core +
        " in the environment chose OpenBLAS' kernels; unset, it takes those for this processor";
  }
}

template <class T>
json measure(const AttentionOptions& o, const plan::Problem& problem) {
  const attention::Kernel kernel = attention::parse_kernel(o.kernel, "--kernel");
  LocalPasses<T> passes(problem, o.seed, kernel, static_cast<float>(o.soft_cap));
  const double pairs = static_cast<double>(problem.mask.pairs(passes.positions(), passes.positions())) *
                       problem.heads * problem.batch;
  json report = {{"check", check_local(passes, o.seed, kernel)},
                 {"pairs", pairs},
                 {"threads", HostExec().concurrency()},
                 {"execution_space", LocalPasses<T>::Exec::name()},
                 {"device", gpu_model()},
                 {"attention_kernel", name_of(passes.kernel())},
                 {"git_hash", git_hash()},
                 {"config",
                  {{"tokens", o.tokens},
                   {"heads", o.heads},
                   {"kv_heads", o.key_value_heads()},
                   {"head_dim", o.head_dim},
                   {"v_head_dim", o.v_head_dim > 0 ? o.v_head_dim : o.head_dim},
                   {"batch", o.batch},
                   {"mask", o.mask},
                   {"soft_cap", o.soft_cap},
                   {"dtype", o.dtype},
                   {"kernel", o.kernel},
                   {"seed", o.seed},
                   {"repetitions", o.repetitions}}}};
  if (times_steps(o)) {
    const typename LocalPasses<T>::Results running(passes.exec(), problem, passes.positions().count);
    report["check"]["steps"] = check_steps(passes, running);
    report["config"]["pause"] = o.pause;
    report["config"]["sustained"] = o.sustained;
    report["steps"] = measure_ring_steps(passes, running, o, pairs);
  } else {
    measure_beside_sgemm(passes, o.repetitions, pairs, report);
  }
  return report;
}

void print_beside_sgemm(const json& report) {
  fmt::print("  {:<9} {:>8.1f} GFLOP/s  ({}, {}³)\n", "sgemm", report["sgemm_gflops"].get<double>(),
             report["blas"].get<std::string>(), Sgemm::size);
  if (const std::string warning = linalg::host_blas_warning(); !warning.empty()) spdlog::warn("{}", warning);
  for (const char* name : {"forward", "backward"}) {
    const json& entry = report[name];
    fmt::print("  {:<9} {:>8.1f} GFLOP/s  {:.3f} of sgemm  ({:.2f} ms, {:.2f} to {:.2f})\n", name,
               entry["gflops"].get<double>(), entry["share_of_sgemm"].get<double>(),
               1e3 * entry["seconds"].get<double>(), 1e3 * entry["seconds_min"].get<double>(),
               1e3 * entry["seconds_max"].get<double>());
  }
  if (report["sgemm"].contains("note")) fmt::print("  {}\n", report["sgemm"]["note"].get<std::string>());
}

void print_steps(const json& report) {
  fmt::print("  {:<28} {:>10} {:>9} {:>12} {:>9}\n", "step", "burst ms", "TFLOP/s", "sustained ms",
             "TFLOP/s");
  for (const std::string& name : ring_step_names()) {
    if (!report["steps"].contains(name)) continue;
    const json &burst = report["steps"][name]["burst"], &sustained = report["steps"][name]["sustained"];
    fmt::print("  {:<28} {:>10.3f} {:>9.3f} {:>12.3f} {:>9.3f}\n", name, 1e3 * burst["seconds"].get<double>(),
               burst["tflops"].get<double>(), 1e3 * sustained["seconds"].get<double>(),
               sustained["tflops"].get<double>());
  }
}

}  // namespace

int run_local_attention(const AttentionOptions& options, const std::string& json_file) {
  plan::Problem problem = options::problem_of(options);
  problem.topology = Topology::uniform(1, 1);
  const json report = with_type(problem.dtype, [&]<class T>(T) { return measure<T>(options, problem); });
  const std::string device = report["device"].get<std::string>();
  fmt::print("{} tokens, {} heads over {} kv heads, head dimension {}, batch {}, {}, {}; kernel {} on {}\n",
             options.tokens, options.heads, options.key_value_heads(), options.head_dim, options.batch,
             options.mask, options.dtype, report["attention_kernel"].get<std::string>(),
             device.empty() ? fmt::format("{} threads", report["threads"].get<int>()) : device);
  report.contains("steps") ? print_steps(report) : print_beside_sgemm(report);
  if (!json_file.empty()) io::write_text_atomically(json_file, io::json_text(report) + "\n");
  return 0;
}

}  // namespace annulus::bench
