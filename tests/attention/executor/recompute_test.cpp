// Attention::recompute: out and lse of the first positions again, bit for bit, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <string>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "support/attention/block_mask.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/rank_messages.hpp"

namespace annulus::test::recomputed {
namespace {

using executor::Plans;
using plan::Pass;

/// What no kernel writes; 16 bits hold it.
constexpr float untouched = 12288.0f;

Plans plans_for(const std::string& schedule, plan::Problem problem, std::int64_t position) {
  Plans plans = plans_of(schedule, problem);
  problem.positions = position;
  if (position > 0) plans.recompute = plan::make_plan(schedule, problem, Pass::forward);
  return plans;
}

/// Rows before `position` have forward's bits, the others are untouched; empty, or what is wrong.
std::string compare(const char* name, const Array& again, const Array& forward, const PositionMap& positions,
                    std::int64_t position) {
  for (std::int64_t b = 0; b < forward.batch; ++b)
    for (std::int64_t h = 0; h < forward.heads; ++h)
      for (std::int64_t r = 0; r < positions.count; ++r)
        for (std::int64_t i = 0; i < forward.width; ++i) {
          const std::int64_t at = positions(r);
          const double found = again.row(b, h, at)[i],
                       expected = at < position ? forward.row(b, h, at)[i] : untouched;
          if (std::bit_cast<std::uint64_t>(found) != std::bit_cast<std::uint64_t>(expected))
            return fmt::format("{} of position {}, head {}, column {}: {} and not {}. ", name, at, h, i,
                               found, expected);
        }
  return {};
}

/// Runs recompute on arrays without results, then with `finished`; empty, or what is wrong.
template <class T>
std::string compute_again(const TestExec& exec, executor::Attention<TestExec, T>& attention,
                          const RankRows<T>& rows, const AttentionResult& forward, std::int64_t position) {
  rows.fill(exec, untouched);
  attention.recompute(exec, rows.forward());
  const AttentionResult again = rows.results(exec);
  const Array finished = rows.finished(
      exec, [&](const auto& arrays) { attention.recompute(exec, arrays); }, untouched);
  const PositionMap& positions = rows.positions();
  return compare("out", again.out, forward.out, positions, position) +
         compare("lse", again.lse, forward.lse, positions, position) +
         compare("finished", finished, rounded(forward.out, dtype_of<T>), positions, position);
}

/// Runs forward, then recompute with each of the plans, whose first positions are `cuts`. `options`: with
/// sinks and a soft cap.
template <class T>
void check(const std::vector<std::vector<Plans>>& plans, const std::vector<std::int64_t>& cuts,
           bool options = false) {
  const plan::Problem& problem = plans[0][0].forward.problem;
  AttentionProblem of = AttentionProblem::random(
      {problem.mask.tokens(), problem.head_dim, std::max<std::int64_t>(problem.batch, plans[0].size()),
       problem.heads, problem.kv_heads},
      "full", problem.dtype);
  if (options) {
    of.soft_cap = 2.0;
    of.add_sinks(problem.dtype);
  }
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    executor::Attention<TestExec, T> attention(exec, communicator, plans[0]);
    const RankRows<T> rows(exec, of, problem.owned(communicator.rank()));
    attention.forward(exec, rows.forward());
    const AttentionResult forward = rows.results(exec);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (i > 0) attention.set_plans(exec, plans[i]);
      EXPECT_EQ(compute_again<T>(exec, attention, rows, forward, cuts[i]), "")
          << fmt::format("{}, {}, {}, {} of {} positions, rank {} of {}", plans[0][0].forward.schedule,
                         problem.layout.to_string(), problem.mask.to_string(), cuts[i], problem.mask.tokens(),
                         communicator.rank(), problem.topology.to_string());
    }
  });
}

template <class T>
void check(const std::string& schedule, plan::Problem problem, const std::vector<std::int64_t>& cuts) {
  problem.dtype = dtype_of<T>;
  std::vector<std::vector<Plans>> plans;
  for (const std::int64_t position : cuts) plans.push_back({plans_for(schedule, problem, position)});
  check<T>(plans, cuts);
}

plan::Problem problem_of(const Topology& topology, const std::string& layout, const std::string& mask,
                         std::int64_t tokens) {
  return {.topology = topology,
          .layout = Layout::parse(layout),
          .mask = Mask::parse(mask, tokens),
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16};
}

/// Blocks of 16 tokens, causal: the first column, the diagonal, some between, and one row that lists nothing.
std::string blocks(std::int64_t tokens) {
  static const TemporaryFolder folder;
  return "causal+" + block_mask(folder, "blocks", tokens, 16, [](std::int64_t row, std::int64_t column) {
           return row % 5 != 2 && (column == row || column == row / 2 || (column == 0 && row % 3 == 0));
         });
}

constexpr std::int64_t tokens = 331;  // tiles of kernels, several a shard

std::vector<std::string> masks() {
  return {"causal",
          "window:90,0",
          "documents:0,5,131,132,245",
          "dilated:20,5",
          "documents:0,140+window:70,0",
          blocks(tokens)};
}

/// All schedules and layouts with each mask, by turns; all cuts.
template <class T>
int cross(std::size_t stride) {
  int run = 0;
  std::size_t number = 0;
  for (const Topology& topology :
       {Topology::uniform(1, 1), Topology::uniform(2, 2), Topology::uniform(3, 3), Topology::uniform(4, 2)}) {
    for (const std::string& schedule : schedules_on(topology.ranks())) {
      for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:7"}) {
        for (const std::string& mask : masks()) {
          const plan::Problem problem = problem_of(topology, layout, mask, tokens);
          if (documented_refusal(schedule, problem) || number++ % stride != 0) continue;
          check<T>(schedule, problem, {165, 1, 200, tokens});
          ++run;
        }
      }
    }
  }
  return run;
}

TEST(Recompute, HasForwardsBitsUnderEveryScheduleLayoutAndMask) {
  EXPECT_GT(cross<float>(4), 200);
}

TEST(Recompute, HasForwardsBitsIn16Bits) {
  EXPECT_GT(cross<bfloat16>(17), 40);
}

// On the last of six ranks an early row gets a helper's result while a later row alone has work: the result
// is merged before what comes next, as in the whole pass.
TEST(Recompute, HelpersReturnInTheRoundsOfAllPositions) {
  const TemporaryFolder folder;
  const std::string mask =
      block_mask(folder, "blocks", 12 * 32, 32, [](std::int64_t row, std::int64_t column) {
        return column == row || (row == 10 && (column == 0 || column == 4)) || (row == 11 && column == 6);
      });
  check<float>("helper-worker",
               problem_of(Topology::uniform(6, 6), "contiguous", "causal+" + mask, 12 * 32),  // two a rank
               {11 * 32});
}

// A sink joins a row once, in whichever of its computes.
TEST(Recompute, OfCappedScoresWithSinksHasForwardsBits) {
  const plan::Problem problem = problem_of(Topology::uniform(4, 2), "contiguous", "causal", 61);
  for (const char* const schedule :
       {"ring", "burst", "double-ring", "ulysses", "hybrid:2x2", "helper-worker"})
    check<float>({{plans_for(schedule, problem, 33)}}, {33}, true);
}

TEST(Recompute, WithoutAPlanOfItsOwnIsTheWholeForwardPass) {
  const plan::Problem problem = problem_of(Topology::uniform(3, 3), "zigzag", "causal", 61);
  check<float>({{plans_for("burst", problem, 0)}}, {61});
}

TEST(Recompute, SequencesOfABatchHaveMasksOfTheirOwn) {
  for (const char* const schedule : {"ring", "ulysses"}) {
    std::vector<Plans> plans;
    for (const char* const mask : {"documents:0,9,30", "causal", "window:12,0"})
      plans.push_back(plans_for(schedule, problem_of(Topology::uniform(4, 2), "striped", mask, 61), 33));
    check<float>({plans}, {33});
  }
}

TEST(Recompute, ComputesThePairsOfTheFirstPositionsAlone) {
  const plan::Problem problem = problem_of(Topology::uniform(4, 4), "striped", "causal", 400);
  std::atomic<std::int64_t> pairs = 0;
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    executor::Settings settings;
    settings.synthetic_kernel = [&](const executor::LocalWork& work) { pairs += work.pairs; };
    const TestExec exec = rank_instance();
    executor::Attention<TestExec, float> attention(exec, communicator, {plans_for("ring", problem, 150)},
                                                   settings);
    attention.recompute(exec, RankRows<float>(exec, AttentionProblem::random({400, 16, 1, 4, 2}, "causal"),
                                              problem.owned(communicator.rank()))
                                  .forward());
  });
  EXPECT_EQ(pairs, problem.heads * 150 * 151 / 2);
}

std::string error_of(const std::vector<Plans>& plans) {
  return messages_of_ranks(plans.front().forward.problem.topology,
                           [&](comm::Communicator& communicator) {
                             executor::Attention<TestExec, float>(rank_instance(), communicator, plans);
                           })
      .front();
}

TEST(Recompute, PlansThatDoNotBelongTogetherAreRefused) {
  const plan::Problem problem = problem_of(Topology::uniform(2, 2), "striped", "causal", 61);
  const Plans good = plans_for("ring", problem, 33),
              zigzag = plans_for("ring", problem_of(problem.topology, "zigzag", "causal", 61), 33);
  EXPECT_THAT(error_of({{good.forward, good.backward, zigzag.recompute}}),
              mentions("another problem", "the layout is zigzag and striped"));
  EXPECT_THAT(error_of({{good.forward, good.backward, good.backward}}),
              mentions("Plans::recompute is one of the backward pass"));
  EXPECT_THAT(error_of({{*good.recompute, good.backward, good.recompute}}),
              mentions("'ring'", "first 33 positions", "Plans::recompute"));
  EXPECT_THAT(error_of({good, plans_for("ring", problem, 34)}),
              mentions("33 positions of sequence 0", "34 positions of sequence 1"));
}

TEST(Recompute, RanksAgreeOnThePositions) {
  const plan::Problem problem = problem_of(Topology::uniform(2, 2), "striped", "causal", 61);
  EXPECT_THAT(
      messages_of_ranks(problem.topology,
                        [&](comm::Communicator& communicator) {
                          const Plans plans = plans_for("ring", problem, communicator.rank() == 0 ? 33 : 0);
                          executor::Attention<TestExec, float>(rank_instance(), communicator, {plans});
                        }),
      testing::Each(mentions("ranks disagree", "none of its own on rank 1",
                             "first 33 positions in 2 steps on rank 0")));
}

}  // namespace
}  // namespace annulus::test::recomputed
