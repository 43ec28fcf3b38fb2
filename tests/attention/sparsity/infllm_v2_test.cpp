// The blocks that InfLLM-V2 selects, beside double precision.
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/sparsity/double_precision.hpp"

namespace annulus::test {
namespace {

// Rounding may order scores otherwise that are alike to 10⁻⁶: of one query of a thousand.
TEST(InfLlmV2, SelectsWhatDoublePrecisionSelects) {
  constexpr double ties = 1e-4;
  const auto f32 = AttentionProblem::random(
      {.tokens = 777, .head_dim = 24, .batch = 2, .heads = 4, .kv_heads = 2}, "causal", DType::f32, 1.5);
  InfLlm{.block = 64, .top = 2, .sinks = 1, .window = 70, .stride = 16}.expect(f32, ties);
  InfLlm{.block = 64, .top = 3, .sinks = 0, .window = 1, .stride = 64}.expect(f32, ties);
  const auto bf16 = AttentionProblem::random({.tokens = 1000, .head_dim = 16, .heads = 6, .kv_heads = 1},
                                             "causal", DType::bf16, 1.5);
  InfLlm{.block = 128, .top = 1, .sinks = 130, .window = 64, .stride = 8}.expect(bf16, ties, DType::bf16);
}

TEST(InfLlmV2, TakesLowerPositionsOfEqualScores) {
  auto problem = AttentionProblem::random({.tokens = 640, .head_dim = 16}, "causal");
  std::ranges::fill(problem.q.values, 0.0);
  const SparseResult sparse =
      run_sparse<float>(problem, {.options = "infllm-v2:block=64,top=2,sinks=0,window=64,stride=16",
                                  .topology = Topology::uniform(2, 2),
                                  .layout = Layout::parse("zigzag"),
                                  .selects_alone = true});
  for (std::int64_t b = 0; b < 10; ++b)
    EXPECT_EQ(sparse.selection.holds(0, 600, b), b < 2 || b == 8 || b == 9) << b;
}

}  // namespace
}  // namespace annulus::test
