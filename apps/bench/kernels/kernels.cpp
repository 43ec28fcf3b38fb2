#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/processor.hpp"
#include "bench/commands.hpp"
#include "bench/common/sample_json.hpp"
#include "bench/kernels/case.hpp"
#include "common/output/output_json.hpp"
#include "options/shared.hpp"
#include "prediction/measurement/sampling.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

namespace {

struct KernelsOptions {
  KernelSizes sizes;
  std::vector<std::string> dtypes = {"f32", "bf16"};
  std::vector<std::string> only;  ///< names of kernels; empty: all
  measurement::Sampling sampling = {.repetitions = 10, .seconds = 1.0};
  std::filesystem::path json;  ///< empty: none
};

using nlohmann::json;
using Exec = Kokkos::DefaultExecutionSpace;

template <class T>
std::vector<KernelCase> all_kernels(const KernelSizes& s) {
  std::vector<KernelCase> all = row_kernels<T>(s);
  for (const auto& more : {head_kernels<T>(s), parameter_kernels<T>(s)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The kernels of one type, checked and timed, in the form of docs/formats/annulus-bench.md; prints a line
/// for each.
template <class T>
void measure_kernels(comm::Communicator& communicator, const KernelsOptions& o, json& kernels) {
  const auto time = [&](const auto& run) { return time_kernel(communicator, o.sampling, run); };
  // Rounding to eight significant bits, and what fp32 arithmetic loses.
  const double tolerance = (std::is_same_v<T, float> ? 0.0 : 0x1p-8) + 2e-5;
  for (const KernelCase& each : all_kernels<T>(o.sizes)) {
    if (!o.only.empty() && std::ranges::find(o.only, each.name) == o.only.end()) continue;
    const ReadyKernel kernel = each.prepare();
    kernel.run();
    finish_kernels();
    const double error = communicator.all_reduce_value(kernel.error(), comm::ReduceOp::max);
    const measurement::Sample seconds = time(kernel.run);
    const CopyKernels copies = copy_kernels(kernel.bytes);
    const measurement::Sample by_kernel = time(copies.kernel), by_deep_copy = time(copies.deep_copy);
    const measurement::Sample& copy = by_kernel.median < by_deep_copy.median ? by_kernel : by_deep_copy;
    const double rate = kernel.bytes / seconds.median, copy_rate = kernel.bytes / copy.median;
    const bool passed = error <= tolerance;
    kernels.push_back({{"name", each.name},
                       {"dtype", name_of(dtype_of<T>)},
                       {"bytes", kernel.bytes},
                       {"seconds", to_json(seconds)},
                       {"copy_seconds", to_json(copy)},
                       {"bandwidth", rate},
                       {"copy_bandwidth", copy_rate},
                       {"share", rate / copy_rate},
                       {"error", error},
                       {"tolerance", tolerance},
                       {"passed", passed}});
    if (communicator.rank() != 0) continue;
    fmt::print("{:<22} {:>5} {:>9.1f} {:>10.4f} {:>8.1f} {:>10.1f} {:>5.0f}% {:>9.1e}{}\n", each.name,
               name_of(dtype_of<T>), kernel.bytes * 1e-6, seconds.median * 1e3, rate * 1e-9, copy_rate * 1e-9,
               100 * rate / copy_rate, error,
               passed ? "" : fmt::format("  WRONG: at most {:.1e} is rounding", tolerance));
    std::fflush(stdout);
  }
}

void check(KernelsOptions& o) {
  o.sizes.complete();
  require(o.sampling.seconds > 0, "--seconds is {}: it must be positive", o.sampling.seconds);
  std::vector<std::string> names;
  for (const KernelCase& each : all_kernels<bfloat16>(o.sizes))
    names.push_back(each.name);  // has all of them
  for (const std::string& name : o.only)
    require(std::ranges::find(names, name) != names.end(), "--kernel '{}': the kernels are {}", name,
            fmt::join(names, ", "));
  for (const std::string& name : o.dtypes) {
    const DType type = parse_dtype(name, "--dtype");
    require(type == DType::f32 || type == DType::bf16, "--dtype {}: training computes in f32 or bf16", name);
  }
}

std::string device_name() {
  if constexpr (has_device) return gpu_model();
  return fmt::format("{}, {} threads", Exec::name(), Exec().concurrency());
}

/// Checks and times the element-wise and row-wise kernels of training on the default execution space, on all
/// ranks of the job at once, beside copies of as many bytes. Returns the exit status: 1 where a result is
/// wrong.
int run_kernels(KernelsOptions& o, const comm::MpiEnvironment& mpi) {
  check(o);
  if (mpi.rank() == 0 && !o.json.empty()) io::require_writable(o.json);
  const auto communicator = mpi.world(0);
  const KernelSizes& s = o.sizes;
  if (mpi.rank() == 0)
    fmt::print(
        "{} tokens, hidden {}, ffn {}, {} heads and {} kv heads of {}; {}, {} rank{}\n"
        "{:<22} {:>5} {:>9} {:>10} {:>8} {:>10} {:>6} {:>9}\n",
        s.tokens, s.hidden, s.ffn, s.heads, s.kv_heads, s.head_dim, device_name(), mpi.size(),
        mpi.size() == 1 ? "" : "s", "kernel", "dtype", "MB", "ms", "GB/s", "copy GB/s", "share", "error");
  json kernels = json::array();
  for (const std::string& name : o.dtypes) {
    parse_dtype(name, "--dtype") == DType::bf16 ? measure_kernels<bfloat16>(*communicator, o, kernels)
                                                : measure_kernels<float>(*communicator, o, kernels);
  }
  json report = app::output_head("annulus-bench kernels");
  report.update({{"config",
                  {{"tokens", s.tokens},
                   {"hidden", s.hidden},
                   {"ffn", s.ffn},
                   {"heads", s.heads},
                   {"kv_heads", s.kv_heads},
                   {"head_dim", s.head_dim}}},
                 {"topology",
                  {{"ranks", mpi.size()},
                   {"execution_space", Exec::name()},
                   {"device", device_name()},
                   {"threads_per_rank", Exec().concurrency()}}},
                 {"kernels", kernels}});
  if (mpi.rank() == 0) app::write_output(o.json, std::move(report));
  return std::ranges::all_of(kernels, [](const json& kernel) { return kernel["passed"] == true; }) ? 0 : 1;
}

}  // namespace

void add_kernels(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "kernels",
      "The element-wise and row-wise kernels of training: each checked against double precision, then timed "
      "beside a copy of as many bytes (docs/benchmarking.md).",
      run_kernels);
  options::SharedOptions shared(command);
  command.add_option("--tokens", o.sizes.tokens, "Rows of a rank; 0: 32768 on a device, 1024 on the host");
  command.add_option("--hidden", o.sizes.hidden, "Width of the residual stream");
  command.add_option("--ffn", o.sizes.ffn, "Width of the SwiGLU");
  command.add_option("--heads", o.sizes.heads, "Query heads");
  command.add_option("--kv-heads", o.sizes.kv_heads, "Key and value heads");
  command.add_option("--head-dim", o.sizes.head_dim, "Width of a head, an even number of elements");
  command.add_option("--dtype", o.dtypes, "Storage type of weights and activations: f32, bf16")
      ->expected(1, -1);
  command.add_option("--kernel", o.only, "Names of the kernels to measure; default: all")->expected(1, -1);
  shared.add(options::Shared::repetitions, o.sampling.repetitions, " of each kernel, after a warm-up");
  command.add_option("--seconds", o.sampling.seconds, "Seconds per kernel: no further repetition after them");
  shared.add(options::Shared::json, o.json, ": all numbers with their spread");
}

}  // namespace annulus::bench
