// What only the kernels of tensor cores do, and rows of long sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "attention/kernels/local_kernels.hpp"
#include "support/error_text.hpp"

#ifdef ANNULUS_ATTENTION_MMA

namespace annulus::test {
namespace {

using attention::Kernel;

class TensorCores : public LocalKernels {};
INSTANTIATE_TEST_SUITE_P(Types, TensorCores, testing::ValuesIn(tensor_core_kernels()), name_of_local_kernel);

// Rows of O, LSE and dQ, and rows of dK and dV, in double precision. What a gradient of one row needs of all
// others, their LSE and D, is taken from the result.
struct SampledRows {
  const AttentionProblem& problem;
  const AttentionResult& result;
  double tolerance;
  MaskRule rule = problem.mask.rule();
  std::vector<double> d = std::vector<double>(static_cast<std::size_t>(problem.shape.tokens));

  SampledRows(const AttentionProblem& of, const AttentionResult& to_check, double within)
      : problem(of), result(to_check), tolerance(within) {
    for (std::int64_t i = 0; i < of.shape.tokens; ++i)
      d[static_cast<std::size_t>(i)] = dot(of.d_out.row(0, 0, i), to_check.out.row(0, 0, i));
  }
  double dot(const double* a, const double* b) const {
    return std::inner_product(a, a + problem.shape.head_dim, b, 0.0);
  }
  double score(std::int64_t q, std::int64_t k) const {
    return problem.scale * dot(problem.q.row(0, 0, q), problem.k.row(0, 0, k));
  }
  double probability(std::int64_t q, std::int64_t k) const {
    return std::exp(score(q, k) - *result.lse.row(0, 0, q));
  }
  double d_score(std::int64_t q, std::int64_t k) const {
    return problem.scale *
           (dot(problem.d_out.row(0, 0, q), problem.v.row(0, 0, k)) - d[static_cast<std::size_t>(q)]);
  }
  using Row = std::vector<double>;
  static void add(Row& to, double factor, const double* row) {
    for (std::size_t c = 0; c < to.size(); ++c) to[c] += factor * row[c];
  }
  void expect_near(const double* value, const Row& expected, const std::string& what) const {
    const double size =
        std::sqrt(std::inner_product(expected.begin(), expected.end(), expected.begin(), 0.0));
    double error = 0;
    for (std::size_t c = 0; c < expected.size(); ++c) error += std::pow(value[c] - expected[c], 2);
    // The first query sees one key: its dQ is exactly zero, and what a kernel has is the rounding of dP − D.
    constexpr double rounding = 1e-5;
    EXPECT_LE(std::sqrt(error), tolerance * size + rounding) << what;
  }
  void check_query(std::int64_t q) const {
    const KeyRange keys = rule.keys(q);
    Row out(static_cast<std::size_t>(problem.shape.head_dim)), dq = out;
    double sum = 0;
    for (std::int64_t k = keys.begin; k < keys.end; k += keys.stride) {
      const double p = probability(q, k);
      sum += p;
      add(out, p, problem.v.row(0, 0, k));
      add(dq, p * d_score(q, k), problem.k.row(0, 0, k));
    }
    EXPECT_NEAR(sum, 1.0, 1e-5) << "the LSE of query " << q;
    expect_near(result.out.row(0, 0, q), out, fmt::format("O of query {}", q));
    expect_near(result.dq.row(0, 0, q), dq, fmt::format("dQ of query {}", q));
  }
  void check_key(std::int64_t k) const {
    Row dk(static_cast<std::size_t>(problem.shape.head_dim)), dv = dk;
    for (std::int64_t q = 0; q < problem.shape.tokens; ++q) {
      const KeyRange keys = rule.keys(q);
      if (k < keys.begin || k >= keys.end) continue;
      const double p = probability(q, k);
      add(dv, p, problem.d_out.row(0, 0, q));
      add(dk, p * d_score(q, k), problem.q.row(0, 0, q));
    }
    expect_near(result.dk.row(0, 0, k), dk, fmt::format("dK of key {}", k));
    expect_near(result.dv.row(0, 0, k), dv, fmt::format("dV of key {}", k));
  }
};

// More key tiles than are classified at a time, and the same bits again. The portable kernel would take
// minutes.
TEST_P(TensorCores, LongSequences) {
  if (type() != DType::bf16 || head_dim() % 64 != 0) GTEST_SKIP() << "shorter sequences test it";
  for (const char* mask : {"causal", "window:33000,40", "documents:0,100,33500"}) {
    const AttentionProblem whole = problem({.tokens = 34000}, mask);
    const AttentionResult result = run(whole), again = run(whole);
    SCOPED_TRACE(mask);
    EXPECT_TRUE(same_bits(result, again));
    const SampledRows rows(whole, result, 3 * tolerance());
    for (const std::int64_t row : {0, 99, 101, 17001, 33499, 33999}) {
      rows.check_query(row);
      rows.check_key(row);
    }
  }
}

// The keys of the second of two contiguous shards are behind all queries of the first.
TEST_P(TensorCores, BlocksWithoutAnyPairLeaveEverythingAsItWas) {
  const AttentionProblem whole = problem({.tokens = 400, .heads = 2, .kv_heads = 1}, "causal");
  check(whole, whole.reference(), {.layout = local_layouts[0], .shards = 2});
  check(whole, whole.reference(), {.layout = local_layouts[0], .shards = 2, .order = 3});
}

TEST_P(TensorCores, LargeLogitsAndNegativeOnes) {
  AttentionProblem whole = problem({.tokens = 333, .heads = 2, .kv_heads = 2}, "causal");
  whole.scale *= 60.0;
  check(whole, whole.reference());
}

TEST_P(TensorCores, SumsDoNotDependOnMultiprocessors) {
  if (kernel() != Kernel::hopper) GTEST_SKIP() << "its blocks are no fixed number";
  const AttentionProblem whole = problem({.tokens = 2100, .heads = 6, .kv_heads = 2}, "causal");
  const AttentionResult expected = run(whole);
  for (const int free : {1, 67, 131, 1000}) {
    LocalRun how;
    how.kernel.free_sms = free;
    EXPECT_TRUE(same_bits(run(whole, how), expected)) << free;
  }
}

TEST_P(TensorCores, FreeOrderOfSums) {
  if (kernel() != Kernel::hopper) GTEST_SKIP() << "its order is always fixed";
  const AttentionProblem whole =
      problem({.tokens = 700, .batch = 2, .heads = 4, .kv_heads = 2}, "window:300,20");
  const AttentionResult expected = whole.reference();
  for (const Storage storage : {Storage::dense, Storage::tokens_first}) {
    LocalRun how{.layout = local_layouts[1], .shards = 2, .storage = storage};
    how.kernel.deterministic = false;
    check(whole, expected, how);
    how.fresh = true;
    check(whole, expected, how);
  }
}

TEST_P(TensorCores, AreChosenWhereTheyApply) {
  const AttentionProblem whole = problem({.tokens = 130}, "causal");
  if (attention::kernel_for<TestExec, bfloat16>(64) == kernel()) {
    const AttentionResult chosen = run_local(exec, whole, type(), {.kernel = Kernel::automatic});
    EXPECT_TRUE(chosen.out.values == run(whole).out.values);
    EXPECT_TRUE(chosen.dq.values == run(whole).dq.values);
  }
  const AttentionProblem odd = AttentionProblem::random({130, 40}, "causal", type());
  EXPECT_EQ(differences(run_local(exec, odd, type(), {.kernel = Kernel::automatic}), odd.reference(),
                        fp32_tolerance),
            "");
  EXPECT_THAT(error_text([&] { run(odd); }),
              testing::HasSubstr(fmt::format("the kernel {} takes bf16 and f16", name_of(kernel()))));
  EXPECT_THAT(error_text([&] { run_local(exec, whole, DType::f32, {.kernel = kernel()}); }),
              testing::HasSubstr("not q (1, 1, 130, "));
  if (kernel() == Kernel::hopper) {
    // Chunks of 33 rows: from one to the next the residue of 4 jumps.
    const AttentionProblem dilated = problem({.tokens = 132}, "dilated:20,4");
    const LocalRun zigzag{.kernel = Kernel::hopper, .layout = local_layouts[1], .shards = 2};
    EXPECT_THAT(error_text([&] { run_local(exec, dilated, type(), zigzag); }),
                testing::HasSubstr("evenly spaced"));
    check(dilated, dilated.reference(), zigzag);
  }
}

}  // namespace
}  // namespace annulus::test

#endif
