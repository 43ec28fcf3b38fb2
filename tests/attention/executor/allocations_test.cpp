// Attention in the steady state allocates nothing: neither on the host nor on a device.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>

#include "support/allocations.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

/// What the passes, and recompute, allocate on all ranks after `warm_up` of them.
template <class T>
std::vector<std::string> allocations_of(comm::Communicator& communicator, const std::string& schedule,
                                        const std::string& layout, const std::string& mask) {
  const auto of = AttentionProblem::random({.tokens = 96, .head_dim = 64, .heads = 4, .kv_heads = 4}, mask);
  const plan::Problem problem =
      planning_problem(of, communicator.topology(), Layout::parse(layout), dtype_of<T>);
  const TestExec exec = rank_instance();
  executor::Plans plans = plans_of(schedule, problem);
  if (problem.mask.rule().right == 0) {  // first positions alone need that
    plan::Problem first = plans.forward.problem;
    first.positions = 50;
    plans.recompute = plan::make_plan(schedule, first, plan::Pass::forward);
  }
  executor::Attention<TestExec, T> attention(exec, communicator, {plans});
  const RankRows<T> rows(exec, of, problem.shard(communicator.rank()));
  const auto passes = [&] {
    rows.run(exec, attention);
    attention.recompute(exec, rows.forward());
    exec.fence("annulus::test: both passes are done");
    communicator.barrier();
  };
  constexpr int warm_up = 2;
  for (int i = 0; i < warm_up; ++i) passes();
  std::optional<Allocations> allocations;  // of all ranks: they are threads
  if (communicator.rank() == 0) allocations.emplace();
  communicator.barrier();
  passes();
  return allocations ? allocations->labels() : std::vector<std::string>();
}

template <class T>
void expect_none(const std::string& schedule, const std::string& layout, const std::string& mask) {
  comm::run_loopback(Topology::uniform(4, 2), [&](comm::Communicator& communicator) {
    EXPECT_THAT(allocations_of<T>(communicator, schedule, layout, mask), testing::IsEmpty())
        << fmt::format("{} {} {}", schedule, layout, mask);
  });
}

TEST(Allocations, NoneInTheSteadyState) {
  for (const char* schedule : {"ring", "burst", "topology-burst", "double-ring", "all-gather", "ulysses"})
    expect_none<float>(schedule, "zigzag", "causal");
  expect_none<float>("hybrid:2x2", "striped", "window:20,7");
  expect_none<float>("helper-worker", "contiguous", "causal");
}

TEST(Allocations, NoneInTheSteadyStateIn16Bits) {
  expect_none<bfloat16>("ring", "zigzag", "documents:0,31,60");
  expect_none<bfloat16>("ulysses", "contiguous", "full");
}

TEST(Allocations, NoneOnOneRank) {
  const auto communicator = comm::make_null();
  EXPECT_THAT(allocations_of<float>(*communicator, "ring", "contiguous", "causal"), testing::IsEmpty());
}

}  // namespace
}  // namespace annulus::test
