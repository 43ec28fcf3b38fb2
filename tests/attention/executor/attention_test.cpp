// One Attention and more than one run of it. cross_test.cpp has all schedules, layouts, masks and heads.
#include <gtest/gtest.h>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"

namespace annulus::test {
namespace {

TEST(DistributedAttention, NullCommunicatorIsOneRank) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto communicator = comm::make_null();
  expect_correct(run(*communicator, *sample, "ring", Layout::parse("zigzag")), "null communicator");
}

TEST(DistributedAttention, TheSameBitsAgain) {
  const auto sample = make_sample("causal", {.tokens = 61});
  for (const char* const schedule : {"ring", "burst"}) {
    comm::run_loopback(Topology::uniform(4, 4), [&](comm::Communicator& communicator) {
      const auto problem = sample->problem(communicator.topology(), Layout::parse("striped"));
      run(communicator, *sample, plan::make_plan(schedule, problem, plan::Pass::forward),
          plan::make_plan(schedule, problem, plan::Pass::backward), Again::all);
    });
  }
}

// Other documents, then a longer sequence: buffers grow; then the first again.
TEST(DistributedAttention, TakesOtherPlans) {
  const std::shared_ptr<const Sample> samples[] = {
      make_sample("documents:0,9,30", {.tokens = 61}), make_sample("documents:0,33", {.tokens = 61}),
      make_sample("causal", {.tokens = 120}), make_sample("documents:0,9,30", {.tokens = 61})};
  comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    const auto plan_of = [&](const Sample& sample, plan::Pass pass) {
      return plan::make_ring(sample.problem(communicator.topology(), Layout()), pass);
    };
    executor::Attention<TestExec, float> attention(exec, communicator,
                                                   plan_of(*samples[0], plan::Pass::forward),
                                                   plan_of(*samples[0], plan::Pass::backward));
    for (const auto& sample : samples) {
      attention.set_plans(exec, plan_of(*sample, plan::Pass::forward),
                          plan_of(*sample, plan::Pass::backward));
      const PositionMap positions = Layout().shard(sample->mask.tokens(), 3, communicator.rank());
      expect_correct(run(communicator, *sample, attention, positions), sample->mask.to_string());
    }
    const auto times = attention.times();
    EXPECT_GT(times.computing, 0.0);
    EXPECT_GE(times.exposed_communication, 0.0);
    attention.reset_times();
    EXPECT_EQ(attention.times().computing, 0.0);
  });
}

}  // namespace
}  // namespace annulus::test
