// Distributed attention over MPI: a sample of what cross_test.cpp does with threads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "attention/executor/flagship_case.hpp"
#include "attention/executor/proof/handmade.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

class DistributedMpi : public ::testing::Test {
 protected:
  /// More ranks than tests count on cores for: what waits takes long.
  bool crowded() const { return world_->size() > 4; }

  comm::MpiEnvironment mpi_;
  std::unique_ptr<comm::Communicator> world_ = mpi_.world();
};

/// One machine stands for two nodes (uneven where the ranks are odd), and, where there are few ranks, for one
/// and for as many as there are ranks.
TEST_F(DistributedMpi, EverySchedule) {
  const int size = world_->size();
  std::set<int> on_node = {(size + 1) / 2};
  if (!crowded()) on_node.insert({1, size});
  check_schedules([&](int ranks_per_node) { return mpi_.world(ranks_per_node); }, size, on_node, 61);
}

TEST_F(DistributedMpi, FlagshipShapesUnderEverySchedule) {
  if (world_->size() != 2) GTEST_SKIP() << "as many ranks as there are cores to count on";
  check_flagship([&](int ranks_per_node) { return mpi_.world(ranks_per_node); }, world_->size());
}

// Long messages of exchanges, in which a rank has many under way at once.
TEST_F(DistributedMpi, ExchangesOfShardsAndHeads) {
  if (crowded()) GTEST_SKIP() << "every schedule on few tokens is enough for that many ranks";
  std::vector<std::string> schedules = {"all-gather", "helper-worker", "ulysses",
                                        fmt::format("hybrid:1x{}", world_->size())};
  if (world_->size() % 2 == 0) {
    const std::string grid = fmt::format("hybrid:2x{}", world_->size() / 2);
    schedules.insert(schedules.end(), {grid, grid + ":context-first"});
  }
  const auto sample = make_sample("causal", {.tokens = 500, .heads = 8, .head_dim = 128});
  for (const std::string& schedule : schedules) {
    expect_correct(run(*world_, *sample, schedule, Layout::parse("contiguous")), schedule);
  }
}

// Messages long enough for the rendezvous protocol, many steps in one go, computes that are cut.
TEST_F(DistributedMpi, LongMessages) {
  if (crowded()) GTEST_SKIP() << "every schedule on few tokens is enough for that many ranks";
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto sample =
        make_sample("causal", {.tokens = 500, .heads = 4, .kv_heads = 2, .head_dim = 128}, type);
    for (const char* schedule : {"ring", "burst"}) {
      // A device multiplies 16-bit P and dS of this head dimension (Kernel::mma).
      expect_correct(run(*world_, *sample, schedule, Layout::parse("zigzag")), schedule,
                     on_host || type == DType::f32 ? fp32_tolerance : 5e-3);
    }
  }
}

TEST_F(DistributedMpi, TheSameBitsAgain) {
  if (crowded()) GTEST_SKIP() << "every schedule on few tokens is enough for that many ranks";
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto problem = sample->problem(world_->topology(), Layout::parse("striped"));
  run(*world_, *sample, plan::make_burst(problem, plan::Pass::forward),
      plan::make_burst(problem, plan::Pass::backward), Again::all);
}

TEST_F(DistributedMpi, HandMadePlan) {
  if (world_->size() != 2) GTEST_SKIP() << "the plan is for two ranks";
  const auto sample =
      make_sample("causal", {.tokens = 40, .heads = 4, .kv_heads = 2, .head_dim = 24, .batch = 3});
  const plan::Problem problem = sample->problem(world_->topology(), Layout::parse("contiguous"));
  const Errors errors = run(*world_, *sample, make_helper(problem, plan::Pass::forward, {3, 17}, {1, 4}),
                            make_helper(problem, plan::Pass::backward, {3, 17}, {1, 4}), Again::all);
  expect_correct(errors, "helper");
}

TEST_F(DistributedMpi, DisagreementIsAnErrorOnAllRanks) {
  if (world_->size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const auto sample = make_sample("causal", {.tokens = 61});
  plan::Problem problem = sample->problem(world_->topology(), Layout::parse("striped"));
  if (world_->rank() == 1) problem.layout = Layout::parse("zigzag");
  EXPECT_THAT(error_text([&] {
                executor::Attention<TestExec, float>(rank_instance(), *world_, {plans_of("ring", problem)});
              }),
              ::testing::HasSubstr("ranks disagree"));
}

}  // namespace
}  // namespace annulus::test
