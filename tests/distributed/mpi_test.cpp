// Distributed attention over MPI: a sample of what attention_test.cpp does with threads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <annulus/comm/mpi.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "distributed/attention_case.hpp"
#include "distributed/handmade.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

class DistributedMpi : public ::testing::Test {
 protected:
  comm::MpiEnvironment mpi_;
  std::unique_ptr<comm::Communicator> world_ = mpi_.world();
};

TEST_F(DistributedMpi, EqualsTheReference) {
  for (const char* mask : {"causal", "window:20,7", "documents:0,5,31,32,45"}) {
    const auto sample = make_sample(mask, {.tokens = 61, .batch = 2});
    for (const char* schedule : {"ring", "burst"}) {
      for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:3"}) {
        expect_correct(run(*world_, *sample, schedule, Layout::parse(layout)),
                       fmt::format("{} {} {}", schedule, layout, mask));
      }
    }
  }
}

// One machine stands for two nodes.
TEST_F(DistributedMpi, RingsBetweenAndInsideNodes) {
  if (world_->size() % 2 != 0) GTEST_SKIP() << "an odd number of ranks makes no two equal nodes";
  const auto nodes = mpi_.world(world_->size() / 2);
  const auto sample = make_sample("causal", {.tokens = 61, .batch = 2});
  for (const char* schedule : {"topology-burst", "hierarchical", "double-ring"}) {
    expect_correct(run(*nodes, *sample, schedule, Layout::parse("zigzag")), schedule);
  }
}

TEST_F(DistributedMpi, ExchangesOfShardsAndHeads) {
  std::vector<std::string> schedules = {"all-gather", "helper-worker", "ulysses",
                                        fmt::format("hybrid:1x{}", world_->size())};
  if (world_->size() % 2 == 0) {
    const std::string grid = fmt::format("hybrid:2x{}", world_->size() / 2);
    schedules.insert(schedules.end(), {grid, grid + ":context-first"});
  }
  for (const Shape& shape : {Shape{.tokens = 61, .batch = 2}, Shape{.tokens = 500, .head_dim = 128}}) {
    const auto sample = make_sample("causal", shape);
    for (const std::string& schedule : schedules) {
      expect_correct(run(*world_, *sample, schedule, Layout::parse("contiguous")), schedule);
    }
  }
}

// Messages long enough for the rendezvous protocol, many steps in one go, computes that are cut.
TEST_F(DistributedMpi, LongMessages) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto sample =
        make_sample("causal", {.tokens = 500, .heads = 4, .kv_heads = 2, .head_dim = 128}, type);
    for (const char* schedule : {"ring", "burst"}) {
      expect_correct(run(*world_, *sample, schedule, Layout::parse("zigzag")), schedule);
    }
  }
}

TEST_F(DistributedMpi, TheSameBitsAgain) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto problem = sample->problem(world_->topology(), Layout::parse("striped"));
  run(*world_, *sample, plan::make_burst(problem, plan::Pass::forward),
      plan::make_burst(problem, plan::Pass::backward), true);
}

TEST_F(DistributedMpi, HandMadePlan) {
  if (world_->size() != 2) GTEST_SKIP() << "the plan is for two ranks";
  const auto sample =
      make_sample("causal", {.tokens = 40, .heads = 4, .kv_heads = 2, .head_dim = 24, .batch = 3});
  const plan::Problem problem = sample->problem(world_->topology(), Layout::parse("contiguous"));
  const Errors errors = run(*world_, *sample, make_helper(problem, plan::Pass::forward, {3, 17}, {1, 4}),
                            make_helper(problem, plan::Pass::backward, {3, 17}, {1, 4}), true);
  expect_correct(errors, "helper");
}

TEST_F(DistributedMpi, DisagreementIsAnErrorOnAllRanks) {
  if (world_->size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const auto sample = make_sample("causal", {.tokens = 61});
  plan::Problem problem = sample->problem(world_->topology(), Layout::parse("striped"));
  if (world_->rank() == 1) problem.layout = Layout::parse("zigzag");
  EXPECT_THAT(error_text([&] {
                distributed::Attention<TestExec, float>(rank_instance(), *world_,
                                                        plan::make_ring(problem, plan::Pass::forward),
                                                        plan::make_ring(problem, plan::Pass::backward));
              }),
              ::testing::HasSubstr("ranks disagree"));
}

}  // namespace
}  // namespace annulus::test
