// Plans that no named schedule makes: the executor runs whatever a plan says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "attention/executor/buffers.hpp"
#include "attention/executor/proof/handmade.hpp"
#include "attention/plan/builders/head_turns.hpp"
#include "attention/plan/builders/tail.hpp"
#include "attention/plan/support.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

void run_helper(const Shape& shape, RowRange rows, plan::HeadRange heads) {
  const auto sample = make_sample("causal", shape);
  const plan::Problem problem = sample->problem(Topology::uniform(2, 2), Layout::parse("contiguous"));
  const plan::Plan forward = make_helper(problem, plan::Pass::forward, rows, heads);
  const plan::Plan backward = make_helper(problem, plan::Pass::backward, rows, heads);
  ASSERT_EQ(plan::violations(forward), std::vector<std::string>());
  ASSERT_EQ(plan::violations(backward), std::vector<std::string>());
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    expect_correct(run(communicator, *sample, forward, backward, Again::all), "helper");
  });
}

TEST(DistributedPlans, PartsOfRowsAndHeadsAreComputedElsewhereAndMerged) {
  run_helper({.tokens = 61, .heads = 2, .kv_heads = 2}, {7, 23}, {0, 2});
  run_helper({.tokens = 61, .heads = 6, .kv_heads = 2}, {0, 30}, {2, 5});  // cuts across groups
  run_helper({.tokens = 61, .heads = 4, .kv_heads = 1}, {7, 9}, {1, 2});   // one head inside a group
  run_helper({.tokens = 40, .heads = 4, .kv_heads = 2, .head_dim = 24, .batch = 3}, {3, 17}, {1, 4});
}

// Computes of some heads, whose gradients travel while those of others are computed.
TEST(DistributedPlans, LastComputesInPartsOfTheirHeads) {
  for (const std::string mask : {"causal", "causal+documents:0,9,40,77", "causal+window:20,0"}) {
    const auto sample = make_sample(mask, {.tokens = 97, .heads = 8, .kv_heads = 4, .batch = 2});
    for (const char* name : {"ring", "burst", "topology-burst", "hierarchical"}) {
      const plan::Problem problem = sample->problem(Topology::uniform(4, 2), Layout::parse("zigzag"));
      const executor::Plans plans = plans_of(name, problem);
      const plan::Plan &forward = plans.forward, &backward = *plans.backward;
      const int last = plan::last_compute(backward);
      for (const int parts : {2, 3}) {
        const plan::Plan cut = plan::overlap_tail(backward, last, parts);
        comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
          expect_correct(run(communicator, *sample, forward, cut, Again::all),
                         std::string(name) + ", " + mask + " in " + std::to_string(parts));
        });
      }
    }
  }
}

// Half of the heads go round behind the others, in half of the exchange buffers, with the same bits.
TEST(DistributedPlans, HeadsInTurns) {
  for (const std::string mask : {"causal", "causal+documents:0,9,40,77"}) {
    const auto sample = make_sample(mask, {.tokens = 97, .heads = 8, .kv_heads = 4, .batch = 2});
    for (const char* name : {"topology-burst", "hierarchical", "double-ring"}) {
      const plan::Problem problem = sample->problem(Topology::uniform(4, 2), Layout::parse("zigzag"));
      const auto in_turns = [&](plan::Pass pass) {
        plan::Problem of_turn = problem;
        of_turn.heads /= 2;
        of_turn.kv_heads /= 2;
        plan::Plan first = plan::make_plan(name, of_turn, pass);
        const int last = plan::last_compute(first);
        return plan::in_turns(problem, {std::move(first), last}, 2);
      };
      const executor::Plans whole = plans_of(name, problem);
      const executor::Plans turns{.forward = in_turns(plan::Pass::forward),
                                  .backward = in_turns(plan::Pass::backward)};
      EXPECT_LT(executor::exchange_memory({{turns}}, 0), executor::exchange_memory({{whole}}, 0));
      comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
        expect_correct(run(communicator, *sample, turns.forward, *turns.backward, Again::all),
                       std::string(name) + ", " + mask + " in turns");
        const TestExec exec = rank_instance();
        const RankRows<float> rows(exec, *sample, problem.owned(communicator.rank()));
        executor::Attention<TestExec, float> attention(exec, communicator, {whole});
        const auto results = [&] {
          rows.fill(exec, 0);
          rows.run(exec, attention);
          return rows.results(exec);
        };
        const AttentionResult expected = results();
        attention.set_plans(exec, {turns});
        const AttentionResult found = results();
        for (const auto array : AttentionResult::arrays())
          EXPECT_EQ((found.*array).values, (expected.*array).values) << name << ", " << mask;
      });
    }
  }
}

// What only evaluates has the bits of what trains, in less memory for exchanges.
TEST(DistributedPlans, ForwardAlone) {
  const auto sample = make_sample("causal", {.tokens = 61});
  for (const char* schedule : {"ring", "burst", "hierarchical", "ulysses"}) {
    const plan::Problem problem = sample->problem(Topology::uniform(2, 2), Layout::parse("zigzag"));
    const executor::Plans both = plans_of(schedule, problem);
    const executor::Plans alone{.forward = both.forward, .backward = std::nullopt};
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_LT(executor::exchange_memory({{alone}}, rank), executor::exchange_memory({{both}}, rank))
          << schedule;
    comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
      const TestExec exec = rank_instance();
      const RankRows<float> rows(exec, *sample, problem.owned(communicator.rank()));
      executor::Attention<TestExec, float> attention(exec, communicator, {both});
      attention.forward(exec, rows.forward());
      const AttentionResult expected = rows.results(exec);
      attention.set_plans(exec, {alone});
      rows.fill(exec, 0);
      attention.forward(exec, rows.forward());
      const AttentionResult found = rows.results(exec);
      EXPECT_EQ(found.out.values, expected.out.values) << schedule;
      EXPECT_EQ(found.lse.values, expected.lse.values) << schedule;
      EXPECT_EQ(attention.steps(plan::Pass::backward), 0);
      EXPECT_THAT(error_text([&] { attention.backward(exec, rows.backward()); }),
                  mentions("Plans::backward"));
      EXPECT_THAT(error_text([&] {
                    attention.set_plans(exec, {alone, both});
                  }),
                  mentions("sequence 1", "sequence 0 has none"));
    });
  }
}

// Gradients that travel in fewer bits are converted on both ends.
TEST(DistributedPlans, WireTypeOtherThanStorage) {
  const auto sample = make_sample("causal", {.tokens = 61});
  for (const DType wire : {DType::bf16, DType::f16}) {
    comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& communicator) {
      const auto problem = sample->problem(communicator.topology(), Layout::parse("zigzag"));
      const auto narrow = [wire](plan::Plan plan) {
        plan.step = [inner = plan.step, wire](int rank, int number) {
          plan::Step step = inner(rank, number);
          for (auto* transfers : {&step.sends, &step.receives}) {
            for (plan::Transfer& t : *transfers) {
              if (!plan::is_row_statistic(t.slice.tensor)) t.wire = wire;
            }
          }
          return step;
        };
        return plan;
      };
      const Errors errors = run(communicator, *sample, narrow(plan::make_burst(problem, plan::Pass::forward)),
                                narrow(plan::make_burst(problem, plan::Pass::backward)));
      EXPECT_LT(errors.largest(), wire == DType::bf16 ? 1e-2 : 2e-3) << name_of(wire);
      EXPECT_GT(errors.out, 1e-5) << "nothing was narrowed to " << name_of(wire);
      EXPECT_GT(errors.dq, 1e-5) << "nothing was narrowed to " << name_of(wire);
    });
  }
}

}  // namespace
}  // namespace annulus::test
