// The tensor-core kernels against the reference, and rows of long sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/base/dtype.hpp>
#include <cmath>
#include <numeric>

#include "attention/local_run.hpp"
#include "attention/masks.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

#ifdef ANNULUS_ATTENTION_MMA

namespace annulus::test {
namespace {

using attention::Kernel;

/// P and dS are rounded to the storage type before they are multiplied: half a unit in its last place, 2⁻⁹
/// and 2⁻¹², a little more in the worst element of an array.
double tolerance(DType type) {
  return type == DType::bf16 ? 5e-3 : 7e-4;
}

const std::vector<Layout> layouts = {Layout(Layout::Kind::contiguous), Layout(Layout::Kind::zigzag),
                                     Layout(Layout::Kind::striped), Layout(Layout::Kind::block_striped, 5)};

class TensorCores : public testing::TestWithParam<std::tuple<Kernel, DType, int>> {
 protected:
  void SetUp() override {
    if (kernel() == Kernel::hopper && attention::kernel_for<TestExec, bfloat16>(64) != Kernel::hopper) {
      GTEST_SKIP() << "this GPU is none of Hopper's";
    }
    if (kernel() == Kernel::mma && head_dim() != 64 && head_dim() != 128) {
      GTEST_SKIP() << "mma does not take this head_dim";
    }
  }

  Kernel kernel() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  int head_dim() const { return std::get<2>(GetParam()); }

  AttentionProblem problem(AttentionShape shape, const std::string& mask) const {
    shape.head_dim = head_dim();
    return AttentionProblem::random(shape, mask, type());
  }
  AttentionResult run(const AttentionProblem& problem, LocalRun run = {}) const {
    // hopper takes dilation in some layouts alone, and not together with blocks.
    const MaskRule rule = problem.mask.rule();
    const bool surely = rule.dilation <= 1 || (run.shards == 1 && rule.block_row_starts == nullptr);
    run.kernel.kernel = kernel() == Kernel::hopper && !surely ? Kernel::automatic : kernel();
    return run_local(exec, problem, type(), run);
  }
  void check(const AttentionProblem& problem, const AttentionResult& expected,
             const LocalRun& how = {}) const {
    const AttentionResult result = run(problem, how);
    const std::string what =
        fmt::format("{} tokens, {}, {} shards {}, storage {}", problem.shape.tokens, problem.mask.to_string(),
                    how.shards, how.layout.to_string(), static_cast<int>(how.storage));
    EXPECT_EQ(differences(result, expected, tolerance(type())), "") << what;
    // Nothing is rounded on the way to the LSE.
    EXPECT_LE(relative_error(result.lse, expected.lse), fp32_tolerance) << what;
  }

  const TestExec exec;
  const MaskTexts masks;
};

INSTANTIATE_TEST_SUITE_P(Types, TensorCores,
                         testing::Combine(testing::Values(Kernel::mma, Kernel::hopper),
                                          testing::Values(DType::bf16, DType::f16),
                                          testing::Values(64, 96, 128, 256)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", name_of(std::get<0>(info.param)),
                                              name_of(std::get<1>(info.param)), std::get<2>(info.param));
                         });

TEST_P(TensorCores, FinishesInTheTypeOfTheInputs) {
  for (const std::string& mask : {std::string("causal"), masks.blocks_of(97)}) {
    for (const Storage storage : {Storage::dense, Storage::tokens_first, Storage::inside}) {
      for (const int shards : {1, 3}) {
        for (const bool fresh : {false, true}) {
          const LocalRun run{.kernel = kernel(),
                             .layout = layouts[storage == Storage::inside ? 1 : 0],
                             .shards = shards,
                             .storage = storage,
                             .fresh = fresh};
          const AttentionProblem of = problem({.tokens = 97, .batch = 2, .heads = 4, .kv_heads = 2}, mask);
          if (type() == DType::bf16)
            expect_finished<bfloat16>(exec, of, run);
          else
            expect_finished<float16>(exec, of, run);
        }
      }
    }
  }
}

TEST_P(TensorCores, MasksLayoutsAndStorages) {
  for (const std::string& mask : masks.all(300)) {
    const AttentionProblem whole = problem({.tokens = 300, .batch = 2, .heads = 4, .kv_heads = 2}, mask);
    const AttentionResult expected = whole.reference();
    check(whole, expected);
    for (const Layout& layout : layouts) {
      check(whole, expected, {.layout = layout, .shards = 3, .order = 5, .storage = Storage::inside});
    }
    check(whole, expected, {.storage = Storage::tokens_first});
    check(whole, expected, {.layout = layouts[1], .shards = 2, .order = 2, .fresh = true});
    check(whole, expected,
          {.layout = layouts[2], .shards = 3, .storage = Storage::tokens_first, .fresh = true});
  }
}

TEST_P(TensorCores, Lengths) {
  for (const std::int64_t tokens : {1, 2, 7, 63, 64, 65, 127, 128, 129, 193, 257}) {
    for (const char* mask : {"full", "causal"}) {
      const AttentionProblem whole = problem({.tokens = tokens, .heads = 2, .kv_heads = 2}, mask);
      check(whole, whole.reference());
    }
  }
}

TEST_P(TensorCores, GroupedHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 1}, {6, 2}, {5, 1}}) {
    const AttentionProblem whole = problem({.tokens = 67, .heads = heads, .kv_heads = kv_heads}, "causal");
    check(whole, whole.reference());
  }
}

TEST_P(TensorCores, HeadsWithBlockListsOfTheirOwn) {
  for (const char* mask : {"full", "causal", "window:90,0"}) {
    for (const auto& [block, heads_of_list] : {std::pair{64, 1}, {64, 4}, {37, 2}}) {
      AttentionProblem whole = problem({.tokens = 300, .batch = 2, .heads = 8, .kv_heads = 2}, mask);
      whole.head_list_block = block;
      whole.heads_of_list = heads_of_list;
      const AttentionResult expected = whole.reference();
      check(whole, expected);
      check(whole, expected, {.layout = layouts[1], .shards = 3, .order = 2, .fresh = true});
      check(whole, expected, {.layout = layouts[2], .shards = 2, .storage = Storage::tokens_first});
    }
  }
}

TEST_P(TensorCores, RowsWithoutKeysGiveExactlyZeroAndMinusInfinity) {
  const AttentionProblem whole = problem({.tokens = 48, .heads = 2, .kv_heads = 1}, masks.blocks_of(48));
  const AttentionResult result = run(whole, {.layout = layouts[2], .shards = 3});
  for (int i = 0; i < 48; ++i) {
    const bool without = i / 12 == 1;
    EXPECT_EQ(std::isinf(*result.lse.row(0, 1, i)), without) << i;
    for (int c = 0; c < head_dim(); ++c) {
      EXPECT_EQ(result.out.row(0, 1, i)[c] == 0 && result.dq.row(0, 1, i)[c] == 0, without) << i;
    }
  }
}

TEST_P(TensorCores, NanIsPassedOn) {
  AttentionProblem whole = problem({.tokens = 70}, "causal");
  whole.k.row(0, 0, 65)[3] = std::numeric_limits<double>::quiet_NaN();
  const AttentionResult result = run(whole);
  EXPECT_FALSE(std::isnan(*result.lse.row(0, 0, 64)));
  for (int i = 65; i < 70; ++i) EXPECT_TRUE(std::isnan(*result.lse.row(0, 0, i))) << i;
  EXPECT_TRUE(std::isnan(result.out.row(0, 0, 65)[0]));
}

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
  if (type() != DType::bf16 || head_dim() == 96) GTEST_SKIP() << "shorter sequences test it";
  for (const char* mask : {"causal", "window:33000,40", "documents:0,100,33500"}) {
    const AttentionProblem whole = problem({.tokens = 34000}, mask);
    const AttentionResult result = run(whole), again = run(whole);
    EXPECT_TRUE(result.out.values == again.out.values && result.lse.values == again.lse.values &&
                result.dq.values == again.dq.values && result.dk.values == again.dk.values &&
                result.dv.values == again.dv.values)
        << mask;
    SCOPED_TRACE(mask);
    const SampledRows rows(whole, result, 3 * tolerance(type()));
    for (const std::int64_t row : {0, 99, 101, 17001, 33499, 33999}) {
      rows.check_query(row);
      rows.check_key(row);
    }
  }
}

// Of two contiguous shards the second one's keys are behind all of the first one's queries.
TEST_P(TensorCores, BlocksWithoutAnyPairLeaveEverythingAsItWas) {
  const AttentionProblem whole = problem({.tokens = 400, .heads = 2, .kv_heads = 1}, "causal");
  check(whole, whole.reference(), {.layout = layouts[0], .shards = 2});
  check(whole, whole.reference(), {.layout = layouts[0], .shards = 2, .order = 3});
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
    const AttentionResult result = run(whole, how);
    EXPECT_TRUE(result.out.values == expected.out.values && result.lse.values == expected.lse.values &&
                result.dq.values == expected.dq.values && result.dk.values == expected.dk.values &&
                result.dv.values == expected.dv.values)
        << free;
  }
}

TEST_P(TensorCores, FreeOrderOfSums) {
  if (kernel() != Kernel::hopper) GTEST_SKIP() << "its order is always fixed";
  const AttentionProblem whole =
      problem({.tokens = 700, .batch = 2, .heads = 4, .kv_heads = 2}, "window:300,20");
  const AttentionResult expected = whole.reference();
  for (const Storage storage : {Storage::dense, Storage::tokens_first}) {
    LocalRun how{.layout = layouts[1], .shards = 2, .storage = storage};
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
    const LocalRun zigzag{.kernel = Kernel::hopper, .layout = layouts[1], .shards = 2};
    EXPECT_THAT(error_text([&] { run_local(exec, dilated, type(), zigzag); }),
                testing::HasSubstr("evenly spaced"));
    check(dilated, dilated.reference(), zigzag);
  }
}

}  // namespace
}  // namespace annulus::test

#endif
