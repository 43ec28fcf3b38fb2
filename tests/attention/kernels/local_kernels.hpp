#pragma once

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "attention/kernels/local_run.hpp"
#include "attention/kernels/masks.hpp"
#include "support/exec.hpp"

namespace annulus::test {

/// Layouts by which shards of any number are cut.
inline const std::vector<Layout> local_layouts = {
    Layout(Layout::Kind::contiguous), Layout(Layout::Kind::zigzag), Layout(Layout::Kind::striped),
    Layout(Layout::Kind::block_striped, 5), Layout(Layout::Kind::balanced)};

/// A kernel, and what it is given. Head dimension 0: the one of each test.
struct LocalKernel {
  attention::Kernel kernel;
  DType type = DType::f32;
  int head_dim = 0;
};

/// Local attention by one kernel, beside the reference.
class LocalKernels : public testing::TestWithParam<LocalKernel> {
 protected:
  void SetUp() override {
    using attention::Kernel;
    if (kernel() == Kernel::hopper && attention::kernel_for<TestExec, bfloat16>(64) != Kernel::hopper)
      GTEST_SKIP() << "this GPU is none of Hopper's";
    if (kernel() == Kernel::mma && head_dim() > 128) GTEST_SKIP() << "mma does not take this head_dim";
  }

  attention::Kernel kernel() const { return GetParam().kernel; }
  DType type() const { return GetParam().type; }
  int head_dim() const { return GetParam().head_dim; }
  bool tensor_cores() const { return attention::on_tensor_cores(kernel()); }
  /// Tensor cores multiply P and dS that are rounded to the storage type: half a unit in its last place, 2⁻⁹
  /// and 2⁻¹², a little more in the worst element of an array.
  double tolerance() const { return !tensor_cores() ? fp32_tolerance : type() == DType::bf16 ? 5e-3 : 7e-4; }

  AttentionProblem problem(AttentionShape shape, const std::string& mask, double amplitude = 1.0) const {
    if (head_dim() > 0) shape.head_dim = head_dim();
    return AttentionProblem::random(shape, mask, type(), amplitude);
  }

  AttentionResult run(const AttentionProblem& problem, LocalRun run = {}) const {
    // hopper takes dilation in some layouts alone, and not together with blocks.
    const MaskRule rule = problem.mask.rule();
    const bool surely = rule.dilation <= 1 || (run.shards == 1 && rule.block_row_starts == nullptr);
    const bool takes_cap =
        problem.soft_cap == 0 || (type() == DType::bf16 && rule.block_row_starts == nullptr &&
                                  problem.head_list_block == 0 && has_capped_tiles());
    run.kernel.kernel = kernel() == attention::Kernel::hopper && !(surely && takes_cap)
                            ? attention::Kernel::automatic
                            : kernel();
    return run_local(exec, problem, type(), run);
  }

  /// Tolerance of a problem with a soft cap: an error of the tangent, 2⁻¹¹ of it on tensor cores, is one of
  /// the score, which may be as large as the cap.
  double capped_tolerance(const AttentionProblem& problem) const {
    return tensor_cores() ? tolerance() + problem.soft_cap / 2048
                          : fp32_tolerance * std::max(1.0, problem.soft_cap);
  }

  /// Solves the problem and compares with the reference.
  void check(const AttentionProblem& problem, const AttentionResult& expected, const LocalRun& how,
             double within) const {
    const AttentionResult result = run(problem, how);
    const std::string what = describe(problem, how);
    EXPECT_EQ(differences(result, expected, within), "") << what;
    // Nothing is rounded on the way to the LSE, but tensor cores take the tangent of capped scores roughly.
    const bool rough = problem.soft_cap > 0 && tensor_cores();
    EXPECT_LE(relative_error(result.lse, expected.lse), rough ? within : fp32_tolerance) << what;
  }
  void check(const AttentionProblem& problem, const AttentionResult& expected,
             const LocalRun& how = {}) const {
    check(problem, expected, how, tolerance());
  }
  void check(const AttentionProblem& problem, const LocalRun& how = {}) const {
    check(problem, problem.reference(), how);
  }

  std::string describe(const AttentionProblem& problem, const LocalRun& run) const {
    const AttentionShape& shape = problem.shape;
    return fmt::format(
        "{} tokens, head_dim {}, batch {}, heads {}/{}, {}, {}, {} shards {}, order {}, storage {}, soft cap "
        "{}, {} sinks",
        shape.tokens, shape.head_dim, shape.batch, shape.heads, shape.kv_heads, problem.mask.to_string(),
        name_of(type()), run.shards, run.layout.to_string(), run.order, static_cast<int>(run.storage),
        problem.soft_cap, problem.sinks.heads);
  }

  const TestExec exec;
  const MaskTexts masks;

 private:
  /// hopper takes soft caps at few head dimensions.
  bool has_capped_tiles() const { return head_dim() == 64 || head_dim() == 128 || head_dim() == 256; }
};

inline std::string name_of_local_kernel(const testing::TestParamInfo<LocalKernel>& info) {
  const auto& [kernel, type, head_dim] = info.param;
  return fmt::format("{}_{}{}", attention::name_of(kernel), name_of(type),
                     head_dim > 0 ? fmt::format("_{}", head_dim) : "");
}

/// Kernels that multiply in fp32, with these types.
inline std::vector<LocalKernel> fp32_kernels(const std::vector<DType>& types) {
  std::vector<LocalKernel> all = {{attention::Kernel::automatic}};
  for (const attention::Kernel kernel : kernels_of<TestExec>())
    for (const DType type : types) all.push_back({kernel, type});
  return all;
}

/// The kernels of tensor cores, where the build has them.
inline std::vector<LocalKernel> tensor_core_kernels() {
  std::vector<LocalKernel> all;
#ifdef ANNULUS_ATTENTION_MMA
  for (const attention::Kernel kernel : {attention::Kernel::mma, attention::Kernel::hopper})
    for (const DType type : {DType::bf16, DType::f16})
      for (const int head_dim : {64, 80, 96, 112, 120, 128, 256})
        if (!on_host) all.push_back({kernel, type, head_dim});
#endif
  return all;
}

}  // namespace annulus::test
