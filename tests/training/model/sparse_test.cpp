// Layers that attend to selected pairs.
#include <gtest/gtest.h>

#include "training/model/model_problem.hpp"

namespace annulus::test {
namespace {

using Result = ModelProblem::Result;

Result run(const ModelProblem& problem, int ranks, const char* layout, const char* schedule) {
  return on_ranks(problem, ranks, layout, schedule, {.count = 2});
}

ModelProblem sparse_problem(const char* sparsity, std::vector<bool> layers) {
  ModelProblem problem(150, "causal");
  problem.sparsity = sparsity;
  problem.sparse_layers = std::move(layers);
  return problem;
}

constexpr const char* few = "vertical-slash:verticals=5,slashes=1,window=20";
constexpr const char* few_blocks = "xattention:block=64,stride=8,threshold=0.5";
constexpr const char* few_of_each_query = "moba:block=64,top=2";
constexpr const char* few_of_kv_heads = "infllm-v2:block=64,top=1,sinks=0,window=1,stride=8";

TEST(SparseModel, OfAllPairsIsDense) {
  const Result dense = run(ModelProblem(150, "causal"), 2, "zigzag", "ring");
  for (const char* pattern : {"vertical-slash:recall=1", "xattention:threshold=1"}) {
    const Result all = run(sparse_problem(pattern, {true, true}), 2, "zigzag", "ring");
    EXPECT_EQ(all.loss, dense.loss) << pattern;
    EXPECT_LT(relative_error(all.gradients, dense.gradients), 1e-6) << pattern;
  }
  const Result gathered = run(sparse_problem("moba:block=64,top=3", {true, true}), 2, "zigzag", "ring");
  EXPECT_NEAR(gathered.loss, dense.loss, 1e-6 * dense.loss) << "merged block by block";
  EXPECT_LT(relative_error(gathered.gradients, dense.gradients), 1e-5);
  for (const char* pattern : {few, few_blocks, few_of_each_query, few_of_kv_heads}) {
    const Result some = run(sparse_problem(pattern, {true, true}), 2, "zigzag", "ring");
    EXPECT_GT(relative_error(some.gradients, dense.gradients), 1e-3) << pattern << ": nothing was left out";
  }
}

class SparsePattern : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(SparseModel, SparsePattern,
                         testing::Values(few, few_blocks, few_of_each_query, few_of_kv_heads),
                         [](const auto& info) {
                           const std::string text = info.param;
                           return text.substr(0, text.find_first_of("-:"));
                         });

TEST_P(SparsePattern, KeepsItsSelectionsForWhatIsComputedAgain) {
  ModelProblem problem = sparse_problem(GetParam(), {false, true});
  const Result kept = run(problem, 2, "block-striped:64", "ring");
  EXPECT_EQ(kept.calls.all, 4);
  EXPECT_EQ(kept.calls.sparse, 2) << "one of two layers, two micro-batches";
  for (const model::Recompute policy : {model::Recompute::selective, model::Recompute::full}) {
    problem.activations.recompute = {policy};
    const Result again = run(problem, 2, "block-striped:64", "ring");
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.gradients, kept.gradients);
  }
  problem.activations.recompute = {model::Recompute::sequence_selective};
  problem.activations.early_positions = 90;
  for (const char* layout : {"block-striped:64", "zigzag"}) {
    const Result again = run(problem, 2, layout, "ring");
    EXPECT_NEAR(again.loss, kept.loss, 1e-5 * kept.loss) << layout;
    EXPECT_LT(relative_error(again.gradients, kept.gradients), 2e-6) << layout;
    EXPECT_EQ(again.calls.early, 2) << "of the dense layer";
  }
}

}  // namespace
}  // namespace annulus::test
