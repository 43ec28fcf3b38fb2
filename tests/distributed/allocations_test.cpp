// Attention in the steady state allocates nothing: neither on the host nor on a device.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <annulus/comm/loopback.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "support/allocations.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

/// This rank's arrays, all zero: what is computed does not matter here.
template <class T>
struct Rank {
  Array4<T, TestExec> q, k, v, d_out;
  Array4<float, TestExec> out, dq, dk, dv;
  Array3<float, TestExec> lse, d;

  Rank(const plan::Problem& problem, std::int64_t rows)
      : q("q", problem.batch, problem.heads, rows, problem.head_dim),
        k("k", problem.batch, problem.kv_heads, rows, problem.head_dim),
        v("v", problem.batch, problem.kv_heads, rows, problem.head_dim),
        d_out("d_out", problem.batch, problem.heads, rows, problem.head_dim),
        out("out", problem.batch, problem.heads, rows, problem.head_dim),
        dq("dq", problem.batch, problem.heads, rows, problem.head_dim),
        dk("dk", problem.batch, problem.kv_heads, rows, problem.head_dim),
        dv("dv", problem.batch, problem.kv_heads, rows, problem.head_dim),
        lse("lse", problem.batch, problem.heads, rows),
        d("d", problem.batch, problem.heads, rows) {}
};

/// What the passes, and recompute, allocate on all ranks after `warm_up` of them.
template <class T>
std::vector<std::string> allocations_of(comm::Communicator& communicator, const std::string& schedule,
                                        const std::string& layout, const std::string& mask) {
  const plan::Problem problem{.topology = communicator.topology(),
                              .layout = Layout::parse(layout),
                              .mask = Mask::parse(mask, 96),
                              .heads = 4,
                              .kv_heads = 4,
                              .head_dim = 64,
                              .batch = 1,
                              .activation = dtype_of<T>};
  const TestExec exec = rank_instance();
  distributed::Plans plans{plan::make_plan(schedule, problem, plan::Pass::forward),
                           plan::make_plan(schedule, problem, plan::Pass::backward)};
  if (problem.mask.rule().right == 0) {  // first positions alone need that
    plan::Problem first = plans.forward.problem;
    first.positions = 50;
    plans.recompute = plan::make_plan(schedule, first, plan::Pass::forward);
  }
  distributed::Attention<TestExec, T> attention(exec, communicator, {plans});
  const Rank<T> r(problem, problem.shard(communicator.rank()).count);
  const auto passes = [&] {
    attention.forward(exec, {.q = r.q, .k = r.k, .v = r.v, .scale = 0.125f, .out = r.out, .lse = r.lse});
    attention.recompute(exec, {.q = r.q, .k = r.k, .v = r.v, .scale = 0.125f, .out = r.out, .lse = r.lse});
    attention::row_dot<TestExec, T>(exec, r.out, r.d_out, r.d);
    attention.backward(exec, {.q = r.q,
                              .k = r.k,
                              .v = r.v,
                              .scale = 0.125f,
                              .lse = r.lse,
                              .d = r.d,
                              .d_out = r.d_out,
                              .dq = r.dq,
                              .dk = r.dk,
                              .dv = r.dv});
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
