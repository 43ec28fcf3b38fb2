// Where kernels run, how they are called, and that the number of threads does not matter.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "attention/kernels/local_run.hpp"
#include "attention/kernels/masks.hpp"
#include "attention/kernels/portable/scratch.hpp"
#include "attention/kernels/tensor_cores.hpp"
#include "support/allocations.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

using attention::Kernel;
namespace tools = Kokkos::Tools::Experimental;

/// Notes every kernel that starts, and every allocation, while it lives.
class Launches {
 public:
  Launches() { call_back(note); }
  ~Launches() { call_back(nullptr); }
  Launches(const Launches&) = delete;

  std::set<std::string> kernels;
  std::set<std::uint32_t> instances;
  const Allocations allocations;

 private:
  void call_back(Kokkos_Profiling_beginFunction begin) {
    current = this;
    tools::set_begin_parallel_for_callback(begin);
    tools::set_begin_parallel_reduce_callback(begin);
    tools::set_begin_parallel_scan_callback(begin);
  }
  static void note(const char* label, std::uint32_t instance, std::uint64_t*) {
    current->kernels.insert(label);
    current->instances.insert(instance);
  }
  static inline Launches* current = nullptr;
};

/// Runs each operation on a new instance and looks where its kernels went. Kokkos gives all host instances of
/// a kind the same number, but each has team scratch of its own, which is allocated with the first team
/// kernel that runs on it.
template <class Exec, class T>
void check_instances(Kernel kernel, const std::set<std::string>& expected) {
  const Exec exec;
  AttentionProblem problem = AttentionProblem::random({130, 24, 1, 4, 2}, "causal", dtype_of<T>);
  problem.add_sinks(dtype_of<T>);
  const PositionMap positions = Layout().shard(130, 1, 0);
  const attention::MaskOn<Exec> mask(exec, problem.mask);
  const AttentionArrays<T, Exec> arrays(exec, problem, positions, positions, 0.0f);
  const auto &out = arrays.out, &lse = arrays.lse;
  const attention::Operands<T, Exec> in = arrays.operands(mask.rule());
  exec.fence("annulus::test: prepared");

  const std::function<void(const Exec&)> operations[] = {
      [&](const Exec& on) { attention::start_forward(on, out.view(), lse.rows()); },
      [&](const Exec& on) { attention::forward(on, in, out.view(), lse.rows(), kernel); },
      [&](const Exec& on) { attention::merge(on, out.read(), lse.read_rows(), out.view(), lse.rows()); },
      [&](const Exec& on) {
        attention::join_sinks<Exec, T>(
            on, {.out = out.view(), .lse = lse.rows(), .finished = {}, .sinks = arrays.sinks.view()});
      },
      [&](const Exec& on) {
        attention::sink_gradients<Exec, T>(
            on, {arrays.sinks.view(), lse.read_rows(), arrays.d.read_rows(), arrays.d_sinks.view()});
      },
      [&](const Exec& on) {
        attention::row_dot<Exec, T>(on, out.read(), arrays.d_out.read(), arrays.d.rows());
      },
      [&](const Exec& on) { attention::backward<Exec, T>(on, in, arrays.gradients(), kernel); }};
  std::set<std::string> kernels;
  for (std::size_t i = 0; i < std::size(operations); ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    const Exec on = new_instance<Exec>();
    const Launches launches;
    operations[i](on);
    on.fence("annulus::test: the operation ran");
    EXPECT_EQ(launches.instances, std::set<std::uint32_t>{tools::device_id(on)});
    bool scratch = false;
    for (const std::string& label : launches.allocations.labels()) {
      scratch = scratch || label.starts_with(std::string("Kokkos::") + Exec::name() + "::scratch_mem");
      EXPECT_TRUE(label.rfind("annulus::attention::", 0) == 0 || label.rfind("Kokkos::", 0) == 0) << label;
    }
    EXPECT_TRUE(scratch || !on_host) << "no team kernel ran on the new instance";
    // Kokkos puts our label behind its own words where it initialises a View.
    for (const std::string& label : launches.kernels) {
      EXPECT_NE(label.find("annulus::attention::"), label.npos) << label;
      kernels.insert(label);
    }
  }
  for (const std::string& label : expected) EXPECT_EQ(kernels.count(label), 1u) << label;
}

const std::set<std::string> portable_kernels = {"annulus::attention::start_forward",
                                                "annulus::attention::merge",
                                                "annulus::attention::join_sinks",
                                                "annulus::attention::sink_gradients",
                                                "annulus::attention::row_dot",
                                                "annulus::attention::portable::forward",
                                                "annulus::attention::portable::backward_dq",
                                                "annulus::attention::portable::backward_dkv"};

TEST(Launch, PortableKernelsRunOnTheInstanceThatIsPassed) {
  check_instances<TestExec, float>(Kernel::portable, portable_kernels);
  check_instances<TestExec, bfloat16>(Kernel::portable, portable_kernels);
}

#ifndef ANNULUS_TEST_ON_DEVICE
TEST(Launch, SimdKernelsRunOnTheInstanceThatIsPassed) {
  check_instances<HostExec, float>(Kernel::host_simd, {"annulus::attention::host_simd::forward"});
  check_instances<HostExec, bfloat16>(Kernel::automatic, {"annulus::attention::host_simd::forward"});
}
#endif

// What logs and reports call the kernel is the one that runs.
TEST(Launch, KernelForNamesTheKernelThatRuns) {
  for (const int head_dim : {24, 128}) {
    const Kernel named = attention::kernel_for<TestExec, float>(head_dim);
    EXPECT_EQ(named, on_host ? Kernel::host_simd : Kernel::portable);
    const AttentionProblem problem = AttentionProblem::random({40, head_dim, 1, 2, 1}, "causal");
    const Launches launches;
    run_local<float>(TestExec(), problem, {.kernel = Kernel::automatic});
    EXPECT_EQ(launches.kernels.count(fmt::format("annulus::attention::{}::forward", name_of(named))), 1u);
  }
  EXPECT_EQ((attention::kernel_for<TestExec, float>(128, Kernel::portable)), Kernel::portable);
#ifdef KOKKOS_ENABLE_CUDA
  if (!on_host) {
    const Kernel fastest = attention::kernel_for<TestExec, bfloat16>(128);
    EXPECT_TRUE(fastest == Kernel::mma || fastest == Kernel::hopper);
    for (const int head_dim : {64, 72, 80, 96, 104, 112, 120})
      EXPECT_EQ((attention::kernel_for<TestExec, bfloat16>(head_dim)), fastest) << head_dim;
    EXPECT_EQ((attention::kernel_for<TestExec, bfloat16>(256)),
              fastest == Kernel::hopper ? Kernel::hopper : Kernel::portable);
    for (const int head_dim : {56, 136})
      EXPECT_EQ((attention::kernel_for<TestExec, bfloat16>(head_dim)), Kernel::portable) << head_dim;
    const auto with_cap = [&]<class T>(T, int head_dim) {
      return attention::kernel_for<TestExec, T>(head_dim, Kernel::automatic, {}, 50.0f);
    };
    for (const int head_dim : {64, 128}) EXPECT_EQ(with_cap(bfloat16(), head_dim), fastest) << head_dim;
    EXPECT_EQ(with_cap(bfloat16(), 96), Kernel::mma);
    EXPECT_EQ(with_cap(float16(), 64), Kernel::mma);
    EXPECT_EQ(with_cap(float16(), 256), Kernel::portable);
    EXPECT_THAT(error_text([] { attention::kernel_for<TestExec, float16>(128, Kernel::hopper, {}, 50.0f); }),
                mentions("the kernel hopper takes", "soft caps of bf16", "the soft cap 50"));
  }
#endif
  EXPECT_THAT(error_text([] { attention::kernel_for<TestExec, float>(128, Kernel::mma); }),
              testing::HasSubstr("the kernel mma takes bf16 and f16"));
}

template <class T>
void check_warning() {
  for (const int head_dim : {16, 64, 80, 128, 136, 256}) {
    const bool slow = !on_host && attention::kernel_for<TestExec, T>(head_dim) == Kernel::portable;
    const std::string text = attention::slow_kernel_warning<TestExec, T>(head_dim, Kernel::automatic);
    EXPECT_EQ(text.empty(), !slow) << head_dim << ": " << text;
    EXPECT_EQ((attention::slow_kernel_warning<TestExec, T>(head_dim, Kernel::portable)), "")
        << "as asked for";
    if (on_host || slow) {
      EXPECT_THAT(error_text([&] { attention::kernel_for<TestExec, T>(head_dim, Kernel::tensor_cores); }),
                  testing::HasSubstr("the kernel tensor_cores takes bf16 and f16"));
    } else {
      EXPECT_EQ((attention::kernel_for<TestExec, T>(head_dim, Kernel::tensor_cores)),
                (attention::kernel_for<TestExec, T>(head_dim)));
    }
  }
}

TEST(Launch, ASlowKernelOnAGpuIsSaidOrForbidden) {
  check_warning<float>();
  check_warning<bfloat16>();
  check_warning<float16>();
}

TEST(TensorCores, SayWhyTheyAreNotUsedAndTheRemedy) {
  using attention::why_not_on_tensor_cores;
  EXPECT_THAT(why_not_on_tensor_cores(DType::bf16, 128, 128, false),
              mentions("this build has no kernels", "preset cuda"));
  EXPECT_THAT(why_not_on_tensor_cores(DType::f32, 128, 128, true), mentions("not f32", "bf16"));
  EXPECT_THAT(why_not_on_tensor_cores(DType::f16, 136, 136, true),
              mentions("head_dim 136", "head_dim 64 to 128 in multiples of 8"));
  EXPECT_THAT(why_not_on_tensor_cores(DType::bf16, 192, 64, true),
              mentions("head_dim 192 with v_head_dim 64", "192 with 128 in bf16"));
}

class Deterministic : public testing::TestWithParam<Kernel> {};

TEST_P(Deterministic, OverRunsAndNumbersOfThreads) {
  const TestExec all, one = new_instance<TestExec>();
  if (on_host) {
    EXPECT_EQ(one.concurrency(), 1);
  }
  const MaskTexts masks;
  for (const std::string& mask : masks.all(300)) {
    const AttentionProblem problem = AttentionProblem::random({300, 40, 2, 4, 2}, mask);
    const LocalRun run{.kernel = GetParam(), .layout = Layout(Layout::Kind::zigzag), .shards = 2};
    const AttentionResult first = run_local<float>(all, problem, run);
    EXPECT_TRUE(same_bits(first, run_local<float>(all, problem, run))) << mask;
    EXPECT_TRUE(same_bits(first, run_local<float>(one, problem, run))) << mask;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Deterministic, testing::ValuesIn(kernels_of<TestExec>()),
                         [](const auto& info) { return std::string(attention::name_of(info.param)); });

// What every GPU gives a team without asking.
TEST(Launch, ThePortableKernelsScratchFits48KiB) {
  EXPECT_LE(attention::portable::Scratch::bytes(), 48u * 1024);
}

}  // namespace
}  // namespace annulus::test
