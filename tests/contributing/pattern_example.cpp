// How to add a pattern of sparsity (docs/contributing.md): what it is given and what it leaves. This one
// needs no scores: attention sinks and a sliding window of blocks (Xiao et al., Efficient Streaming Language
// Models).
#include <gtest/gtest.h>

#include "attention/sparsity/sparse_case.hpp"

namespace annulus::test {
namespace {

using namespace sparsity;  // NOLINT(google-build-using-namespace): the example is a part of it

class SinksAndWindow final : public Pattern<TestExec, float> {
 public:
  /// The first `sinks` tokens, and for each query its own block of keys and those up to `distance` before it.
  SinksAndWindow(std::int32_t sinks, int distance) : sinks_(sinks), distance_(distance) {}

  Selection<TestExec> select(const TestExec& exec, comm::Communicator& /*communicator*/,
                             const PatternInputs<TestExec, float>& in) override {
    Selection<TestExec> made;
    made.tokens = in.tokens;
    made.batch = in.q.extent_int(0);
    made.heads = in.q.extent_int(1);
    made.lists = in.k.extent_int(1);
    const std::int64_t blocks = made.block_rows(), lists = made.all_lists();
    made.blocks = Owned<Array3<std::uint32_t, TestExec>>::zeroed(exec, MemoryCategory::activations, "slashes",
                                                                 lists, 1, ceil_divide(blocks, 32));
    made.columns = Owned<Array2<std::int32_t, TestExec>>::uninitialized(exec, MemoryCategory::activations,
                                                                        "columns", lists, sinks_);
    for (std::int64_t list = 0; list < lists; ++list) {
      made.blocks.view()(list, 0, 0) =
          (2u << distance_) - 1;  // bit d: the block d blocks before a query's own
      for (std::int32_t sink = 0; sink < sinks_; ++sink) made.columns.view()(list, sink) = sink;
    }
    made.listed = lists * blocks * (distance_ + 1);  // or fewer
    return made;
  }

 private:
  std::int32_t sinks_;
  int distance_;
};

TEST(PatternExample, RunsThroughAttention) {
  const AttentionProblem problem = AttentionProblem::random(
      {.tokens = 500, .head_dim = 16, .batch = 1, .heads = 4, .kv_heads = 2}, "causal");
  AttentionResult result = problem.empty_result();
  HostSelection selected;
  comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& communicator) {
    const TestExec exec;
    const plan::Problem of{.topology = communicator.topology(),
                           .layout = Layout::parse("zigzag"),
                           .mask = problem.mask,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16};
    executor::Attention<TestExec, float> dense(exec, communicator,
                                               plan::make_plan("ring", of, plan::Pass::forward),
                                               plan::make_plan("ring", of, plan::Pass::backward));
    sparsity::SparseAttention<TestExec, float> sparse(communicator, dense, of, {});
    const PositionMap rows = of.owned(communicator.rank());
    const auto q = rows_on<float>(exec, problem.q, rows), k = rows_on<float>(exec, problem.k, rows),
               v = rows_on<float>(exec, problem.v, rows), out = filled_rows(exec, problem.q, rows, 0.0f);
    const Array3<float, TestExec> lse("lse", 1, 4, rows.count);
    const auto scale = static_cast<float>(problem.scale);

    SinksAndWindow pattern(5, 1);
    const auto selection = pattern.select(exec, communicator, {q.memory(), k.memory(), rows, 500, scale});
    sparse.forward(
        exec,
        {.q = q.memory(), .k = k.memory(), .v = v.memory(), .scale = scale, .out = out.memory(), .lse = lse},
        selection);
    const SelectedPairs pairs = sparse.check_pairs(exec);  // or an error: computed is what was selected
    EXPECT_EQ(pairs.forward.computed, pairs.forward.selected);
    out.store(result.out, rows);
    if (communicator.rank() == 0) selected = HostSelection::of(selection);
  });
  EXPECT_FALSE(selected.allows(0, 400, 100));
  EXPECT_LT(relative_error(result.out, problem.reference(ExactPairs(selected).rule()).out), fp32_tolerance);
}

}  // namespace
}  // namespace annulus::test
