#include "bench/local_attention.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>

#include "bench/local_check.hpp"
#include "bench/statistics.hpp"
#include "common/checks.hpp"

namespace annulus::bench {
namespace {

using nlohmann::json;

template <class Action>
void time(Times* times, const Action& action) {
  const Kokkos::Timer timer;
  action();
  if (times != nullptr) times->add(timer.seconds());
}

/// OpenBLAS' product of two square matrices, on as many threads as the kernels have.
class Sgemm {
 public:
  static constexpr int size = 2048;
  static constexpr double flops = 2.0 * size * size * size;

  Sgemm() : a_(elements, 1.0f), b_(elements, 0.5f), c_(elements) {
    openblas_set_num_threads(HostExec().concurrency());
  }
  void operator()() {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1.0f, a_.data(), size, b_.data(),
                size, 0.0f, c_.data(), size);
  }

 private:
  static constexpr std::size_t elements = static_cast<std::size_t>(size) * size;
  std::vector<float> a_, b_, c_;
};

json rate(const Times& times, double flops) {
  return {{"seconds", times.median()},
          {"seconds_min", times.least()},
          {"seconds_max", times.most()},
          {"flops", flops},
          {"gflops", flops / times.median() * 1e-9}};
}

json pass(const Times& times, double flops, const Times& sgemm) {
  json entry = rate(times, flops);
  entry["share_of_sgemm"] = flops / times.median() / (Sgemm::flops / sgemm.median());
  entry["share_of_sgemm_fastest"] = flops / times.least() / (Sgemm::flops / sgemm.least());
  return entry;
}

plan::Problem make_problem(const AttentionOptions& o) {
  plan::Problem problem;
  problem.topology = Topology::uniform(1, 1);
  problem.mask = Mask::parse(o.mask, o.tokens, "--mask");
  problem.heads = o.heads;
  problem.kv_heads = app::checked_kv_heads(o.heads, o.kv_heads);
  problem.head_dim = o.head_dim;
  problem.batch = o.batch;
  problem.activation = app::parse_storage(o.dtype);
  return problem;
}

template <class T>
json measure(const AttentionOptions& o, const plan::Problem& problem) {
  const attention::Kernel kernel = attention::parse_kernel(o.kernel, "--kernel");
  LocalPasses<T> passes(problem, o.seed, kernel);
  const json check = check_local(passes, o.seed, kernel);

  Sgemm multiply;
  Times sgemm, forward, backward;
  for (int round = 0; round <= o.repetitions; ++round) {
    const bool timed = round > 0;  // the first round warms up
    time(timed ? &sgemm : nullptr, [&] { multiply(); });
    time(timed ? &forward : nullptr, [&] { passes.forward(); });
    time(timed ? &sgemm : nullptr, [&] { multiply(); });
    time(timed ? &backward : nullptr, [&] { passes.backward(); });
  }

  const double pairs = static_cast<double>(problem.mask.pairs(passes.positions(), passes.positions())) *
                       problem.heads * problem.batch;
  const double flops = 4.0 * pairs * problem.head_dim;
  json report = {{"forward", pass(forward, flops, sgemm)},
                 {"backward", pass(backward, 2.5 * flops, sgemm)},
                 {"sgemm", rate(sgemm, Sgemm::flops)},
                 {"sgemm_gflops", Sgemm::flops / sgemm.median() * 1e-9},
                 {"openblas_core", openblas_get_corename()},
                 {"pairs", pairs},
                 {"check", check},
                 {"threads", HostExec().concurrency()},
                 {"execution_space", HostExec::name()},
                 {"attention_kernel", name_of(attention::kernel_for<HostExec, T>(o.head_dim, kernel))},
                 {"git_hash", git_hash()},
                 {"config",
                  {{"tokens", o.tokens},
                   {"heads", o.heads},
                   {"kv_heads", o.key_value_heads()},
                   {"head_dim", o.head_dim},
                   {"batch", o.batch},
                   {"mask", o.mask},
                   {"dtype", o.dtype},
                   {"kernel", o.kernel},
                   {"seed", o.seed},
                   {"repetitions", o.repetitions}}}};
  report["sgemm"]["size"] = Sgemm::size;
  if (const char* core = std::getenv("OPENBLAS_CORETYPE")) {
    report["sgemm"]["note"] =
        std::string("OPENBLAS_CORETYPE=") + core +
        " in the environment chose OpenBLAS' kernels; unset, it takes those for this processor";
  }
  return report;
}

}  // namespace

json measure_local_attention(const AttentionOptions& options) {
  const plan::Problem problem = make_problem(options);
  switch (problem.activation) {
    case DType::f32:
      return measure<float>(options, problem);
    case DType::bf16:
      return measure<bfloat16>(options, problem);
    default:
      return measure<float16>(options, problem);
  }
}

int run_local_attention(const AttentionOptions& options, const std::string& json_file) {
  const json report = measure_local_attention(options);
  fmt::print("{} tokens, {} heads over {} kv heads, head dimension {}, {}, {}; {} threads\n", options.tokens,
             options.heads, options.key_value_heads(), options.head_dim, options.mask, options.dtype,
             report["threads"].get<int>());
  fmt::print("  {:<9} {:>8.1f} GFLOP/s  (OpenBLAS {}, {}³)\n", "sgemm", report["sgemm_gflops"].get<double>(),
             report["openblas_core"].get<std::string>(), Sgemm::size);
  for (const char* name : {"forward", "backward"}) {
    const json& entry = report[name];
    fmt::print("  {:<9} {:>8.1f} GFLOP/s  {:.3f} of sgemm  ({:.2f} ms, {:.2f} to {:.2f})\n", name,
               entry["gflops"].get<double>(), entry["share_of_sgemm"].get<double>(),
               1e3 * entry["seconds"].get<double>(), 1e3 * entry["seconds_min"].get<double>(),
               1e3 * entry["seconds_max"].get<double>());
  }
  if (report["sgemm"].contains("note")) fmt::print("  {}\n", report["sgemm"]["note"].get<std::string>());
  if (!json_file.empty()) io::write_text_atomically(json_file, report.dump(2) + "\n");
  return 0;
}

}  // namespace annulus::bench
