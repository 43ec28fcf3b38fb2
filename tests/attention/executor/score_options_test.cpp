// Under every schedule: sinks and soft caps, arguments of a call of which plans know nothing, and rows of V
// and O of another width than those of Q and K.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/block_mask.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::test::score_options {
namespace {

constexpr std::int64_t tokens = 61;
constexpr double soft_cap = 2.0;  // scores are of size 1: it bends all of them

/// Blocks of 8 tokens: the first column, the diagonal, and one row that lists nothing.
std::string blocks() {
  static const TemporaryFolder folder;
  return block_mask(folder, "blocks", tokens, 8, [](std::int64_t row, std::int64_t column) {
    return row != 2 && (column == 0 || column == row);
  });
}

std::vector<std::string> masks() {
  return {"causal", "window:20,7", "documents:0,5,31,32,45", blocks(), "documents:0,40,41+window:9,0"};
}

/// Checks both passes, out in 16 bits, and all of it again with the same bits, on every schedule that serves
/// the mask in one of the layouts, which take turns.
void check(const Topology& topology, DType type, std::size_t stride, const Shape& shape) {
  const std::vector<std::string> layouts = {"contiguous", "zigzag", "striped", "block-striped:3"};
  std::size_t number = 0, run = 0;
  for (const std::string& mask : masks()) {
    const auto sample = make_sample(mask, shape, type);
    for (const std::string& schedule : schedules_on(topology.ranks())) {
      if (number++ % stride != 0) continue;
      plan::Problem problem = sample->problem(topology, Layout::parse(layouts[number % layouts.size()]));
      if (documented_refusal(schedule, problem)) problem.layout = Layout();
      if (documented_refusal(schedule, problem)) continue;
      const executor::Plans plans = plans_of(schedule, problem);
      comm::run_loopback(topology, [&](comm::Communicator& communicator) {
        const Errors errors = test::run(communicator, *sample, plans.forward, *plans.backward, Again::all);
        expect_correct(errors, fmt::format("{} {} {} {} on {}", schedule, problem.layout.to_string(), mask,
                                           name_of(type), topology.to_string()));
      });
      ++run;
    }
  }
  EXPECT_GT(run, 5u);
}

TEST(ScoreOptions, SinksAndCapsUnderEverySchedule) {
  const Shape shape{.tokens = tokens, .heads = 8, .kv_heads = 4, .soft_cap = soft_cap, .sinks = true};
  for (const Topology& topology : {Topology::uniform(2, 2), Topology::uniform(3, 3), Topology::uniform(4, 2)})
    check(topology, DType::f32, 1, shape);
  check(Topology::uniform(4, 2), DType::bf16, 5, shape);
}

TEST(ScoreOptions, SinksAloneAndCapsAlone) {
  check(Topology::uniform(4, 2), DType::f32, 3, {.tokens = tokens, .batch = 2, .sinks = true});
  check(Topology::uniform(4, 2), DType::f32, 3, {.tokens = tokens, .batch = 2, .soft_cap = soft_cap});
}

TEST(ScoreOptions, ValuesOfAnotherWidth) {
  Shape shape{.tokens = tokens, .heads = 8, .kv_heads = 4, .head_dim = 24, .v_head_dim = 16};
  for (const Topology& topology : {Topology::uniform(3, 3), Topology::uniform(4, 2)})
    check(topology, DType::f32, 1, shape);
  check(Topology::uniform(4, 2), DType::bf16, 3, shape);
  shape.v_head_dim = 40;
  check(Topology::uniform(4, 2), DType::f32, 4, shape);
}

TEST(ScoreOptions, FewerTokensThanRanks) {
  const auto sample = make_sample("causal", {.tokens = 3, .soft_cap = soft_cap, .sinks = true});
  comm::run_loopback(Topology::uniform(5, 5), [&](comm::Communicator& communicator) {
    for (const char* const schedule : {"ring", "burst", "all-gather"})
      expect_correct(test::run(communicator, *sample, schedule, Layout()), schedule);
  });
}

TEST(ScoreOptions, NamesWhatDoesNotFit) {
  const auto communicator = comm::make_null();
  const auto sample = make_sample("causal", {.tokens = tokens, .sinks = true});
  const plan::Problem problem = sample->problem(communicator->topology(), Layout());
  const TestExec exec = rank_instance();
  executor::Attention<TestExec, float> attention(exec, *communicator, {plans_of("ring", problem)});
  const RankRows<float> rows(exec, *sample, problem.shard(0));
  auto forward = rows.forward();
  forward.soft_cap = -1;
  EXPECT_THAT(error_text([&] { attention.forward(exec, forward); }), mentions("soft cap", "-1"));
  forward = rows.forward();
  forward.sinks = Kokkos::subview(forward.sinks, Kokkos::pair(0, 3));
  EXPECT_THAT(error_text([&] { attention.forward(exec, forward); }), mentions("sinks has 3", "4 heads"));
  attention.forward(exec, rows.forward());
  auto backward = rows.backward();
  backward.d_sinks = {};
  EXPECT_THAT(error_text([&] { attention.backward(exec, backward); }), mentions("d_sinks has 0", "4 heads"));
}

}  // namespace
}  // namespace annulus::test::score_options
