// Layers that attend to selected pairs.
#include <gtest/gtest.h>

#include <annulus/comm/loopback.hpp>
#include <cmath>
#include <vector>

#include "model/llama_problem.hpp"

namespace annulus::test {
namespace {

using Result = LlamaProblem::Result;

Result on_ranks_of(const LlamaProblem& problem, int ranks, const char* layout, const char* schedule) {
  Result result;
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    const Result mine = problem.run<float>(communicator, layout, schedule, 1.0f, {.count = 2});
    if (communicator.rank() == 0) result = mine;
  });
  return result;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

LlamaProblem sparse_problem(const char* sparsity, std::vector<bool> layers) {
  LlamaProblem problem(150, "causal");
  problem.sparsity = sparsity;
  problem.sparse_layers = std::move(layers);
  return problem;
}

constexpr const char* few = "vertical-slash:verticals=5,slashes=1,window=20";

TEST(SparseLlama, IsTheSameOnAnyRanks) {
  const LlamaProblem problem = sparse_problem(few, {true, true});
  const Result one = on_ranks_of(problem, 1, "contiguous", "ring");
  for (const auto& [ranks, layout, schedule] :
       {std::tuple{2, "block-striped:64", "burst"}, {3, "zigzag", "ring"}}) {
    const Result several = on_ranks_of(problem, ranks, layout, schedule);
    EXPECT_NEAR(several.loss, one.loss, 1e-5 * one.loss) << ranks << " ranks";
    EXPECT_LT(distance(several.gradients, one.gradients), 1e-5) << ranks << " ranks";
  }
}

TEST(SparseLlama, OfAllPairsIsDense) {
  const Result dense = on_ranks_of(LlamaProblem(150, "causal"), 2, "zigzag", "ring");
  const Result all =
      on_ranks_of(sparse_problem("vertical-slash:recall=1", {true, true}), 2, "zigzag", "ring");
  EXPECT_EQ(all.loss, dense.loss);
  EXPECT_LT(distance(all.gradients, dense.gradients), 1e-6);
  const Result some = on_ranks_of(sparse_problem(few, {true, true}), 2, "zigzag", "ring");
  EXPECT_GT(distance(some.gradients, dense.gradients), 1e-3) << "nothing was left out";
}

TEST(SparseLlama, KeepsItsSelectionsForWhatIsComputedAgain) {
  LlamaProblem problem = sparse_problem(few, {false, true});
  const Result kept = on_ranks_of(problem, 2, "block-striped:64", "ring");
  EXPECT_EQ(kept.calls.all, 4);
  EXPECT_EQ(kept.calls.sparse, 2) << "one of two layers, two micro-batches";
  for (const model::Recompute policy : {model::Recompute::selective, model::Recompute::full}) {
    problem.activations.recompute = {policy};
    const Result again = on_ranks_of(problem, 2, "block-striped:64", "ring");
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.gradients, kept.gradients);
  }
  problem.activations.recompute = {model::Recompute::sequence_selective};
  problem.activations.early_positions = 90;
  for (const char* layout : {"block-striped:64", "zigzag"}) {
    const Result again = on_ranks_of(problem, 2, layout, "ring");
    EXPECT_NEAR(again.loss, kept.loss, 1e-5 * kept.loss) << layout;
    EXPECT_LT(distance(again.gradients, kept.gradients), 2e-6) << layout;
    EXPECT_EQ(again.calls.early, 2) << "of the dense layer";
  }
}

}  // namespace
}  // namespace annulus::test
