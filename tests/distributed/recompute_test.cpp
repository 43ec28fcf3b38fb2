// Attention::recompute: out and lse of the first positions again, bit for bit, and nothing else.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <annulus/comm/loopback.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "support/schedule_cases.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::test::recomputed {
namespace {

using distributed::Plans;
using plan::Pass;

/// What no kernel writes.
constexpr float untouched = 12345.0f;

/// A rank's arrays, the inputs functions of global position, head and column.
template <class T>
struct Rank {
  PositionMap positions;
  Array4<T, TestExec> q, k, v;
  Array4<float, TestExec> out;
  Array3<float, TestExec> lse;

  Rank(const plan::Problem& problem, int batch, int rank)
      : positions(problem.owned(rank)),
        q(input("q", problem, batch, problem.heads)),
        k(input("k", problem, batch, problem.kv_heads)),
        v(input("v", problem, batch, problem.kv_heads)),
        out("out", q.layout()),
        lse("lse", q.extent(0), q.extent(1), q.extent(2)) {}

  Array4<T, TestExec> input(const char* label, const plan::Problem& problem, int batch, int heads) const {
    const Array4<T, TestExec> array(label, batch, heads, positions.count, problem.head_dim);
    const auto host = Kokkos::create_mirror_view(array);
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (std::int64_t r = 0; r < positions.count; ++r) {
          for (int i = 0; i < problem.head_dim; ++i) {
            const std::int64_t place = ((positions(r) * 131 + h) * 67 + i) * 11 + b * 5 + label[0];
            host(b, h, r, i) = T(static_cast<float>(place * 40503 % 1009) / 504.5f - 1.0f);
          }
        }
      }
    }
    Kokkos::deep_copy(array, host);
    return array;
  }

  auto arrays() const {
    return typename distributed::Attention<TestExec, T>::Forward{
        .q = q, .k = k, .v = v, .scale = 0.7f, .out = out, .lse = lse};
  }
  void fill(float value) const {
    Kokkos::deep_copy(out, value);
    Kokkos::deep_copy(lse, value);
  }
  /// out and lse, on the host.
  auto results() const {
    const auto copy = [](const auto& view) {
      const auto host = Kokkos::create_mirror(Kokkos::HostSpace(), view);
      Kokkos::deep_copy(host, view);
      return host;
    };
    return std::pair{copy(out), copy(lse)};
  }
};

bool same_bits(const float& a, const float& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Rows before `position` have forward's bits, the others are untouched; empty, or what is wrong.
template <class T>
std::string compare(const Rank<T>& rank, const auto& forward, std::int64_t position) {
  const auto& [out, lse] = forward;
  const auto [again, lse_again] = rank.results();
  for (std::size_t b = 0; b < out.extent(0); ++b) {
    for (std::size_t h = 0; h < out.extent(1); ++h) {
      for (std::int64_t r = 0; r < rank.positions.count; ++r) {
        const bool early = rank.positions(r) < position;
        if (!same_bits(lse_again(b, h, r), early ? lse(b, h, r) : untouched))
          return fmt::format("lse of position {}, head {}: {} and not {}", rank.positions(r), h,
                             lse_again(b, h, r), early ? lse(b, h, r) : untouched);
        for (std::size_t i = 0; i < out.extent(3); ++i)
          if (!same_bits(again(b, h, r, i), early ? out(b, h, r, i) : untouched))
            return fmt::format("out of position {}, head {}, column {}: {} and not {}", rank.positions(r), h,
                               i, again(b, h, r, i), early ? out(b, h, r, i) : untouched);
      }
    }
  }
  return {};
}

Plans plans_of(const std::string& schedule, plan::Problem problem, std::int64_t position) {
  Plans plans{plan::make_plan(schedule, problem, Pass::forward),
              plan::make_plan(schedule, problem, Pass::backward)};
  problem.positions = position;
  if (position > 0) plans.recompute = plan::make_plan(schedule, problem, Pass::forward);
  return plans;
}

/// recompute with `finished`: early rows are forward's out, rounded, the others untouched.
template <class T>
std::string compare_finished(const TestExec& exec, distributed::Attention<TestExec, T>& attention,
                             const Rank<T>& rank, const auto& forward, std::int64_t position) {
  const Array4<T, TestExec> finished("finished", rank.q.layout());
  Kokkos::deep_copy(finished, T(untouched));
  auto arrays = rank.arrays();
  arrays.finished = finished;
  attention.recompute(exec, arrays);
  exec.fence("annulus::test: finished again");
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), finished);
  const auto& out = forward.first;
  for (std::size_t b = 0; b < out.extent(0); ++b)
    for (std::size_t h = 0; h < out.extent(1); ++h)
      for (std::int64_t r = 0; r < rank.positions.count; ++r)
        for (std::size_t i = 0; i < out.extent(3); ++i) {
          const T expected(rank.positions(r) < position ? out(b, h, r, i) : untouched);
          if (std::memcmp(&host(b, h, r, i), &expected, sizeof expected) != 0)
            return fmt::format("finished of position {}, head {}, column {}", rank.positions(r), h, i);
        }
  return {};
}

/// Runs forward, then recompute for each of the positions on arrays without results.
template <class T>
void check(const std::string& schedule, plan::Problem problem, const std::vector<std::int64_t>& cuts) {
  problem.activation = dtype_of<T>;
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    distributed::Attention<TestExec, T> attention(exec, communicator,
                                                  {plans_of(schedule, problem, cuts.front())});
    const plan::Problem arranged = plan::arranged_for(schedule, problem);
    const Rank<T> rank(arranged, problem.batch, communicator.rank());
    attention.forward(exec, rank.arrays());
    exec.fence("annulus::test: forward is done");
    const auto forward = rank.results();
    for (const std::int64_t position : cuts) {
      if (position != cuts.front()) attention.set_plans(exec, {plans_of(schedule, problem, position)});
      rank.fill(untouched);
      attention.recompute(exec, rank.arrays());
      exec.fence("annulus::test: computed again");
      EXPECT_EQ(compare(rank, forward, position), "")
          << fmt::format("{}, {}, {}, {} of {} positions, rank {} of {}", schedule,
                         problem.layout.to_string(), problem.mask.to_string(), position,
                         problem.mask.tokens(), communicator.rank(), problem.topology.to_string());
      EXPECT_EQ(compare_finished(exec, attention, rank, forward, position), "")
          << fmt::format("{}, {}, {}", schedule, problem.layout.to_string(), problem.mask.to_string());
    }
  });
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
  const std::int64_t count = (tokens + 15) / 16;
  std::string text = fmt::format("annulus-block-mask 1\nblocks {}\n", count);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::set<std::int64_t> columns =
        row % 3 == 0 ? std::set{std::int64_t{0}, row / 2, row} : std::set{row / 2, row};
    text += fmt::format("{}: {}\n", row, row % 5 == 2 ? "" : fmt::format("{}", fmt::join(columns, " ")));
  }
  return fmt::format("causal+blocks:16,{}", folder.write(fmt::format("{}.txt", tokens), text + "end\n"));
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
  std::string text = "annulus-block-mask 1\nblocks 12\n";  // two a rank
  for (int row = 0; row < 10; ++row) text += fmt::format("{}: {}\n", row, row);
  const std::string mask = folder.write("blocks", text + "10: 0 4 10\n11: 6 11\nend\n");
  check<float>("helper-worker",
               problem_of(Topology::uniform(6, 6), "contiguous", "causal+blocks:32," + mask, 12 * 32),
               {11 * 32});
}

TEST(Recompute, WithoutAPlanOfItsOwnIsTheWholeForwardPass) {
  const plan::Problem problem = problem_of(Topology::uniform(3, 3), "zigzag", "causal", 61);
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    distributed::Attention<TestExec, float> attention(exec, communicator, {plans_of("burst", problem, 0)});
    const Rank<float> rank(problem, 1, communicator.rank());
    attention.forward(exec, rank.arrays());
    exec.fence("annulus::test: forward is done");
    const auto forward = rank.results();
    rank.fill(untouched);
    attention.recompute(exec, rank.arrays());
    exec.fence("annulus::test: computed again");
    EXPECT_EQ(compare(rank, forward, 61), "");
  });
}

TEST(Recompute, SequencesOfABatchHaveMasksOfTheirOwn) {
  const char* const masks[] = {"documents:0,9,30", "causal", "window:12,0"};
  for (const char* const schedule : {"ring", "ulysses"}) {
    const Topology topology = Topology::uniform(4, 2);
    comm::run_loopback(topology, [&](comm::Communicator& communicator) {
      const TestExec exec = rank_instance();
      std::vector<Plans> plans;
      for (const char* const mask : masks)
        plans.push_back(plans_of(schedule, problem_of(topology, "striped", mask, 61), 33));
      distributed::Attention<TestExec, float> attention(exec, communicator, plans);
      const Rank<float> rank(plans.front().forward.problem, 3, communicator.rank());
      attention.forward(exec, rank.arrays());
      exec.fence("annulus::test: forward is done");
      const auto forward = rank.results();
      rank.fill(untouched);
      attention.recompute(exec, rank.arrays());
      exec.fence("annulus::test: computed again");
      EXPECT_EQ(compare(rank, forward, 33), "") << schedule;
      EXPECT_EQ(compare_finished(exec, attention, rank, forward, 33), "") << schedule;
    });
  }
}

TEST(Recompute, ComputesThePairsOfTheFirstPositionsAlone) {
  const plan::Problem problem = problem_of(Topology::uniform(4, 4), "striped", "causal", 400);
  std::atomic<std::int64_t> pairs = 0;
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    distributed::Settings settings;
    settings.synthetic_kernel = [&](const distributed::Work& work) { pairs += work.pairs; };
    const TestExec exec = rank_instance();
    distributed::Attention<TestExec, float> attention(exec, communicator, {plans_of("ring", problem, 150)},
                                                      settings);
    attention.recompute(exec, Rank<float>(problem, 1, communicator.rank()).arrays());
  });
  EXPECT_EQ(pairs, problem.heads * 150 * 151 / 2);
}

std::string error_of(const std::vector<Plans>& plans) {
  std::string error;
  comm::run_loopback(plans.front().forward.problem.topology, [&](comm::Communicator& communicator) {
    const std::string mine =
        error_text([&] { distributed::Attention<TestExec, float>(rank_instance(), communicator, plans); });
    if (communicator.rank() == 0) error = mine;
  });
  return error;
}

TEST(Recompute, PlansThatDoNotBelongTogetherAreRefused) {
  const plan::Problem problem = problem_of(Topology::uniform(2, 2), "striped", "causal", 61);
  const Plans good = plans_of("ring", problem, 33);
  Plans plans = good;
  plans.recompute =
      plans_of("ring", problem_of(Topology::uniform(2, 2), "zigzag", "causal", 61), 33).recompute;
  const std::string found = " (found on rank 0)";
  EXPECT_EQ(error_of({plans}),
            "the plan that computes attention again solves another problem than the forward plan: the layout "
            "is zigzag and striped" +
                found);
  plans = good;
  plans.recompute = good.backward;
  EXPECT_EQ(error_of({plans}),
            "what computes attention again is a plan of the forward pass, but Plans::recompute is one of the "
            "backward pass" +
                found);
  plans = good;
  plans.forward = *good.recompute;
  EXPECT_EQ(error_of({plans}),
            "the plan 'ring' is for the first 33 positions alone: give it as Plans::recompute, beside plans "
            "of both passes for all positions" +
                found);
  EXPECT_EQ(error_of({good, plans_of("ring", problem, 34)}),
            "attention is computed again for the first 33 positions of sequence 0 of the batch, but for the "
            "first 34 positions of sequence 1: give every sequence a plan for it of the same positions, or "
            "none" +
                found);
}

TEST(Recompute, RanksAgreeOnThePositions) {
  const plan::Problem problem = problem_of(Topology::uniform(2, 2), "striped", "causal", 61);
  comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
    const Plans plans = plans_of("ring", problem, communicator.rank() == 0 ? 33 : 0);
    const std::string error =
        error_text([&] { distributed::Attention<TestExec, float>(rank_instance(), communicator, {plans}); });
    EXPECT_EQ(
        error,
        "ranks disagree about the plan that computes attention again: none of its own on rank 1, ring "
        "forward of the first 33 positions in 2 steps on rank 0; give every rank the same configuration "
        "and data");
  });
}

}  // namespace
}  // namespace annulus::test::recomputed
