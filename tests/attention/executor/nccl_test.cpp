// Distributed attention over NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include <annulus/attention/executor/attention.hpp>

#include "attention/executor/flagship_case.hpp"
#include "attention/executor/nccl_fixture.hpp"
#include "support/attention/rank_rows.hpp"

namespace annulus::test {
namespace {

TEST_F(DistributedNccl, EveryScheduleEqualsTheReference) {
  const int size = mpi_.size();
  check_schedules([&](int ranks_per_node) { return comm::make_nccl(mpi_.world(ranks_per_node)); }, size,
                  {1, std::max(1, size / 2), size}, 257);
}

TEST_F(DistributedNccl, TensorCoresUnderEverySchedule) {
  check_flagship([&](int ranks_per_node) { return comm::make_nccl(mpi_.world(ranks_per_node)); },
                 mpi_.size());
}

// Steps long enough that kernels and transfers of several steps are under way together: a transfer that began
// too early, or a kernel that did, would show.
TEST_F(DistributedNccl, TheSameBitsAsOverMpi) {
  const auto mpi = mpi_.world();
  const auto nccl = comm::make_nccl(mpi_.world());
  const auto of = AttentionProblem::random({4096, 128, 1, 8, 8}, "causal", DType::bf16);
  for (const std::string schedule : {"ring", "burst", "all-gather", "ulysses", "double-ring"}) {
    const plan::Problem problem{.topology = mpi->topology(),
                                .layout = Layout::parse("zigzag"),
                                .mask = of.mask,
                                .heads = 8,
                                .kv_heads = 8,
                                .head_dim = 128,
                                .batch = 1,
                                .dtype = DType::bf16};
    const executor::Plans plans = plans_of(schedule, problem);
    const TestExec exec = rank_instance();
    const RankRows<bfloat16> rows(exec, of, problem.shard(mpi->rank()));
    executor::Attention<TestExec, bfloat16> over_mpi(exec, *mpi, {plans}), over_nccl(exec, *nccl, {plans});
    const auto results = [&](auto& attention) {
      rows.run(exec, attention);
      return rows.results(exec);
    };
    const AttentionResult expected = results(over_mpi);
    for (int again = 0; again < 5; ++again)
      EXPECT_TRUE(same_bits(results(over_nccl), expected)) << schedule << ", run " << again;
  }
}

}  // namespace
}  // namespace annulus::test
