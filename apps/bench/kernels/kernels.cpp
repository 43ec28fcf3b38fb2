#include "bench/kernels/kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <algorithm>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/io/atomic.hpp>

#include "bench/kernels/report.hpp"
#include "common/output_json.hpp"
#include "options/shared.hpp"

namespace annulus::bench {

CLI::App* add_kernels_command(CLI::App& app, KernelsOptions& o) {
  CLI::App* command = app.add_subcommand(
      "kernels",
      "The element-wise and row-wise kernels of training: each checked against double precision, then timed "
      "beside a copy of as many bytes (docs/kernels-benchmark.md).");
  options::SharedOptions shared(*command);
  command->add_option("--tokens", o.sizes.tokens, "Rows of a rank; 0: 32768 on a device, 1024 on the host");
  command->add_option("--hidden", o.sizes.hidden, "Width of the residual stream");
  command->add_option("--ffn", o.sizes.ffn, "Width of the SwiGLU");
  command->add_option("--heads", o.sizes.heads, "Query heads");
  command->add_option("--kv-heads", o.sizes.kv_heads, "Key and value heads");
  command->add_option("--head-dim", o.sizes.head_dim, "Width of a head, an even number of elements");
  command->add_option("--dtype", o.dtypes, "Storage type of weights and activations: f32, bf16")
      ->expected(1, -1);
  command->add_option("--kernel", o.only, "Names of the kernels to measure; default: all")->expected(1, -1);
  shared.add(options::Shared::repetitions, o.sampling.repetitions, " of each kernel, after a warm-up");
  command->add_option("--seconds", o.sampling.seconds,
                      "Seconds per kernel: no further repetition after them");
  shared.add(options::Shared::json, o.json, ": all numbers with their spread");
  return command;
}

namespace {

/// The kernels of one type, checked and timed.
class Session {
 public:
  Session(comm::Communicator& communicator, const KernelsOptions& options, KernelsReport& report)
      : communicator_(communicator), options_(options), report_(report) {}

  template <class T>
  void run() {
    const KernelSizes& s = options_.sizes;
    for (const auto& group : {row_kernels<T>(s), head_kernels<T>(s), parameter_kernels<T>(s)})
      for (const KernelCase& each : group)
        if (options_.only.empty() || std::ranges::find(options_.only, each.name) != options_.only.end())
          report_.results.push_back(check_and_time<T>(each));
  }

 private:
  template <class T>
  KernelResult check_and_time(const KernelCase& each) {
    KernelResult r;
    r.name = each.name;
    r.dtype = name_of(dtype_of<T>);
    const ReadyKernel kernel = each.prepare();
    r.bytes = kernel.bytes;
    // Rounding to eight significant bits, and what fp32 arithmetic loses.
    r.tolerance = (std::is_same_v<T, float> ? 0.0 : 0x1p-8) + 2e-5;
    kernel.run();
    finish_kernels();
    r.error = communicator_.all_reduce_value(kernel.error(), comm::ReduceOp::max);
    r.seconds = time(kernel.run);
    const CopyKernels copy = copy_kernels(kernel.bytes);
    const measure::Sample by_kernel = time(copy.kernel), by_deep_copy = time(copy.deep_copy);
    r.copy_seconds = by_kernel.median < by_deep_copy.median ? by_kernel : by_deep_copy;
    return r;
  }

  measure::Sample time(const std::function<void()>& run) {
    return measure::sample(communicator_, options_.sampling, [&](int iterations) {
      for (int i = 0; i < iterations; ++i) run();
      finish_kernels();
    });
  }

  comm::Communicator& communicator_;
  const KernelsOptions& options_;
  KernelsReport& report_;
};

std::vector<std::string> all_names(const KernelSizes& s) {
  std::vector<std::string> names;
  using T = bfloat16;  // has all of them
  for (const auto& group : {row_kernels<T>(s), head_kernels<T>(s), parameter_kernels<T>(s)})
    for (const KernelCase& each : group) names.push_back(each.name);
  return names;
}

void check(KernelsOptions& o) {
  o.sizes.complete();
  require(o.sampling.seconds > 0, "--seconds is {}: it must be positive", o.sampling.seconds);
  const std::vector<std::string> names = all_names(o.sizes);
  for (const std::string& name : o.only)
    require(std::ranges::find(names, name) != names.end(), "--kernel '{}': the kernels are {}", name,
            fmt::join(names, ", "));
  for (const std::string& name : o.dtypes) {
    const DType type = parse_dtype(name, "--dtype");
    require(type == DType::f32 || type == DType::bf16, "--dtype {}: training computes in f32 or bf16", name);
  }
}

std::string device_name() {
#if defined(KOKKOS_ENABLE_CUDA)
  return Kokkos::Cuda().cuda_device_prop().name;
#else
  return fmt::format("{}, {} threads", Kokkos::DefaultExecutionSpace::name(),
                     Kokkos::DefaultExecutionSpace().concurrency());
#endif
}

}  // namespace

int run_kernels(KernelsOptions o, const comm::MpiEnvironment& mpi) {
  check(o);
  if (mpi.rank() == 0 && !o.json.empty()) io::require_writable(o.json);
  const auto communicator = mpi.world(0);
  KernelsReport report;
  report.sizes = o.sizes;
  report.execution_space = Kokkos::DefaultExecutionSpace::name();
  report.device = device_name();
  report.ranks = mpi.size();
  report.threads = Kokkos::DefaultExecutionSpace().concurrency();
  Session session(*communicator, o, report);
  for (const std::string& name : o.dtypes) {
    if (parse_dtype(name, "--dtype") == DType::bf16) {
      session.run<bfloat16>();
    } else {
      session.run<float>();
    }
  }
  const bool passed = std::ranges::all_of(report.results, &KernelResult::passed);
  if (mpi.rank() == 0) {
    fmt::print("{}", to_table(report));
    if (!o.json.empty()) io::write_text_atomically(o.json, app::output_text(to_json(report)));
  }
  return passed ? 0 : 1;
}

}  // namespace annulus::bench
