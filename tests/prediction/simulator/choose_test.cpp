// Which schedule and layout is chosen, and why.
#include <annulus/prediction/simulator/choose.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/support.hpp"
#include "support/error_text.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array<Pass, 2> both = {Pass::forward, Pass::backward};
constexpr std::array<Pass, 1> backward = {Pass::backward};

plan::Problem problem_of(int nodes, int ranks_per_node, std::string_view mask, std::int64_t tokens,
                         int kv_heads = 32) {
  plan::Problem problem = plan::test::on_nodes(nodes, ranks_per_node, tokens, "contiguous", mask);
  problem.heads = 32;
  problem.kv_heads = kv_heads;
  problem.head_dim = 128;
  problem.batch = 1;
  problem.dtype = DType::bf16;
  return problem;
}

/// The seconds of one candidate.
double time_of(const ScheduleChoice& choice, std::string_view schedule, std::string_view layout) {
  const auto found = std::ranges::find_if(choice.candidates, [&](const ScheduleCandidate& c) {
    return c.schedule == schedule && c.layout.to_string() == layout;
  });
  EXPECT_NE(found, choice.candidates.end()) << schedule << " on " << layout;
  return found == choice.candidates.end() ? 0 : found->time();
}

/// A cluster with links so slow that what travels decides.
Cluster slow_links() {
  Cluster cluster = default_cluster();
  cluster.intra_node.bandwidth = 3e9;
  cluster.inter_node.bandwidth = 0.5e9;
  return cluster;
}

TEST(Choose, ErrorsListAuto) {
  const auto schedule = [](std::string_view text) {
    return error_text([&] { check_schedule_or_auto(text, "--schedule"); });
  };
  const auto layout = [](std::string_view text) {
    return error_text([&] { check_layout_or_auto(text, "--layout"); });
  };
  for (const char* good : {"auto", "ring", "hybrid:2x4"}) EXPECT_EQ(schedule(good), "no error") << good;
  EXPECT_EQ(layout("auto"), "no error");
  EXPECT_THAT(schedule("brust"), AllOf(HasSubstr("did you mean 'burst'?"), HasSubstr("or auto")));
  EXPECT_THAT(schedule("autoo"), HasSubstr("did you mean 'auto'?"));
  EXPECT_THAT(layout("spiral"), AllOf(HasSubstr("--layout = 'spiral'"), HasSubstr("or auto")));
}

/// A case of one pass and what is chosen for it.
struct ChoiceCase {
  int ranks, ranks_per_node;
  std::int64_t tokens;
  const char* mask;
  int kv_heads;
  Pass pass;
  const char* cluster;  ///< "default", "slow" or "one NIC" for each node
  const char *layout, *schedule_and_layout;
};

// Choices that a change of the estimates keeps.
constexpr ChoiceCase chosen[] = {
    {12, 4, 131072, "full", 32, Pass::backward, "one NIC", "auto", "burst contiguous"},
    {8, 8, 131072, "documents:0,9000,70000", 32, Pass::backward, "default", "auto", "burst striped"},
    {8, 8, 131072, "documents:0,9000,70000", 8, Pass::backward, "slow", "auto", "hybrid:2x4 balanced"},
    {12, 4, 131072, "documents:0,9000,70000", 8, Pass::backward, "default", "auto", "hierarchical striped"},
    {12, 4, 131072, "window:4096,0", 32, Pass::forward, "default", "auto", "hybrid:2x6 contiguous"},
    {12, 4, 131072, "documents:0,9000,70000", 8, Pass::forward, "one NIC", "auto", "hybrid:4x3 zigzag"},
    {16, 8, 131072, "full", 8, Pass::backward, "slow", "auto", "hybrid:8x2 contiguous"},
    {16, 8, 131072, "documents:0,9000,70000", 32, Pass::forward, "default", "auto", "hybrid:8x2 striped"},
    {12, 4, 131072, "causal", 8, Pass::backward, "one NIC", "auto", "ring zigzag"},
    {12, 4, 131072, "full", 32, Pass::backward, "default", "auto", "topology-burst contiguous"},
    {12, 4, 131072, "causal", 32, Pass::backward, "default", "auto", "topology-burst zigzag"},
    {8, 8, 131072, "documents:0,9000,70000", 32, Pass::forward, "slow", "auto", "hybrid:4x2 balanced"},
    {12, 4, 131072, "causal", 32, Pass::forward, "slow", "auto", "ulysses zigzag"},
    {256, 8, 1 << 22, "window:100000,0", 8, Pass::forward, "slow", "auto", "hybrid:8x32 contiguous"},
    {1024, 8, 1 << 24, "causal", 8, Pass::forward, "default", "auto", "ring zigzag"},
    {1024, 8, 1 << 24, "window:100000,0", 8, Pass::forward, "slow", "auto", "hybrid:8x128 contiguous"},
    {1024, 8, 1 << 24, "causal", 32, Pass::forward, "one NIC", "zigzag", "topology-burst zigzag"},
    {4096, 4, 1 << 24, "full", 8, Pass::forward, "default", "auto", "ring contiguous"},
    {4096, 4, 1 << 24, "causal", 8, Pass::forward, "slow", "auto", "topology-burst zigzag"},
    {4096, 4, 1 << 24, "causal", 32, Pass::forward, "one NIC", "contiguous", "hybrid:32x128 contiguous"},
    {8192, 8, 1 << 24, "causal", 8, Pass::backward, "default", "auto", "hierarchical zigzag"}};

TEST(Choose, OutcomesStay) {
  std::map<std::string_view, Cluster> clusters = {
      {"default", default_cluster()}, {"slow", slow_links()}, {"one NIC", default_cluster()}};
  clusters["one NIC"].nics_per_node = 1;
  for (const ChoiceCase& c : chosen) {
    SCOPED_TRACE(testing::Message() << c.ranks << " ranks, " << c.mask << ", " << name_of(c.pass) << ", "
                                    << c.cluster);
    const ScheduleChoice choice =
        choose(problem_of(c.ranks / c.ranks_per_node, c.ranks_per_node, c.mask, c.tokens, c.kv_heads), "auto",
               c.layout, std::span(&c.pass, 1), clusters[c.cluster]);
    EXPECT_EQ(choice.schedule + " " + choice.layout.to_string(), c.schedule_and_layout);
  }
}

TEST(Choose, GroupedQueriesTurnTheBackwardRound) {
  // 8·h·d + 8·h bytes a token (Burst) against 12·h_kv·d (ring).
  for (const int kv_heads : {32, 8}) {
    const plan::Problem problem = problem_of(1, 40, "full", 40 * 512, kv_heads);  // too many for ulysses
    const ScheduleChoice choice = choose(problem, "auto", "contiguous", backward, slow_links());
    const double ring = time_of(choice, "ring", "contiguous"), burst = time_of(choice, "burst", "contiguous");
    EXPECT_EQ(burst < ring, kv_heads == 32);
    const ScheduleChoice of_rings =
        choose(problem, kv_heads == 32 ? "burst" : "ring", "contiguous", backward, slow_links());
    EXPECT_DOUBLE_EQ(of_rings.seconds, std::min(ring, burst));
  }
}

TEST(Choose, LayersWithOtherMasksAddUp) {
  plan::Problem problem = problem_of(1, 4, "causal", 1 << 15);
  const Mask causal = problem.mask, window = Mask::parse("window:1000,0", 1 << 15);
  const auto seconds = [&](const Mask& mask) {
    problem.mask = mask;
    return choose(problem, "burst", "zigzag", both, slow_links()).seconds;
  };
  const double sum = 2 * seconds(causal) + 3 * seconds(window);
  EXPECT_DOUBLE_EQ(choose(problem, "burst", "zigzag", both, slow_links(),
                          {.layers = {{.mask = causal, .layers = 2}, {.mask = window, .layers = 3}}})
                       .seconds,
                   sum);
  // Each has what it selects.
  const auto sparse = [&](double density) {
    problem.mask = causal;
    return choose(problem, "burst", "zigzag", both, slow_links(), {.selected = {density}}).seconds;
  };
  EXPECT_DOUBLE_EQ(
      choose(problem, "burst", "zigzag", both, slow_links(),
             {.layers = {{.mask = window, .layers = 3}, {.mask = causal, .layers = 2, .selected = {0.25}}}})
          .seconds,
      3 * seconds(window) + 2 * sparse(0.25));
  EXPECT_LT(sparse(0.25), sparse(1));
}

TEST(Choose, OneRankTakesTheSimplest) {
  const ScheduleChoice choice =
      choose(problem_of(1, 1, "causal", 1 << 12), "auto", "auto", both, default_cluster());
  EXPECT_EQ(choice.schedule, "ring");
  EXPECT_EQ(choice.layout, Layout());
}

TEST(Choose, IsTheSimulatedMinimum) {
  const plan::Problem problem = problem_of(2, 4, "causal", 1 << 16, 8);
  const ScheduleChoice choice = choose(problem, "auto", "auto", both, default_cluster());
  for (const ScheduleCandidate& candidate : choice.candidates) {
    if (!candidate.reason.empty()) continue;
    ASSERT_TRUE(candidate.seconds) << candidate.schedule << ": few ranks are simulated, all of them";
    EXPECT_GE(*candidate.seconds * (1 + 1e-3), choice.seconds) << candidate.schedule;
    plan::Problem posed = problem;
    posed.layout = candidate.layout;
    double seconds = 0;
    for (const Pass pass : both)
      seconds += simulate(plan::make_plan(candidate.schedule, posed, pass), default_cluster()).time;
    EXPECT_EQ(*candidate.seconds, seconds);
  }
}

TEST(Choose, EstimatesAreNear) {
  for (const char* mask : {"full", "causal", "window:2000,0", "documents:0,9000,30000"}) {
    const ScheduleChoice choice =
        choose(problem_of(2, 8, mask, 1 << 16, 8), "auto", "auto", both, default_cluster());
    for (const ScheduleCandidate& c : choice.candidates) {
      if (!c.seconds) continue;
      SCOPED_TRACE(c.schedule + " on " + c.layout.to_string() + " under " + mask);
      EXPECT_GT(c.estimate, 0.5 * *c.seconds);
      // Estimates send whole shards, also where a schedule sends the rows alone that are needed.
      EXPECT_LT(c.estimate, (std::string_view(mask).starts_with("window") ? 6 : 3) * *c.seconds);
    }
  }
}

// A document that is shorter than a shard and has most of the pairs, many short ones that give striped ranks
// other numbers of pairs, and slow kernels: what the busiest rank computes decides.
TEST(Choose, TakesBalancedForDocumentsThatAskForIt) {
  Cluster cluster = default_cluster();
  for (KernelRate& kernel : cluster.kernels) kernel.rate /= 1e3;
  const auto offered = [&](const plan::Problem& problem, const ChooseOptions& options = {}) {
    const ScheduleChoice choice =
        choose(problem, "all-gather", "auto", std::span(both).first(1), cluster, options);
    return std::ranges::count(choice.candidates, "balanced",
                              [](const ScheduleCandidate& c) { return c.layout.to_string(); }) > 0;
  };
  std::string mask = "documents:0";
  for (std::int64_t start = 400; start < 1 << 12; start += 4) mask += ',' + std::to_string(start);
  plan::Problem problem = problem_of(1, 4, mask, 1 << 12, 8);
  EXPECT_TRUE(offered(problem));
  EXPECT_EQ(choose(problem, "all-gather", "auto", both, cluster).layout.to_string(), "balanced");
  EXPECT_FALSE(offered(problem, {.fixed_layouts = true}));
  problem.positions = 1024;
  EXPECT_FALSE(offered(problem));
  EXPECT_FALSE(offered(problem_of(1, 4, "causal", 1 << 12, 8)));
}

TEST(Choose, IsDeterministic) {
  const plan::Problem problem = problem_of(4, 4, "causal", 1 << 15, 8);
  const ScheduleChoice a = choose(problem, "auto", "auto", both, default_cluster());
  plan::Problem other = problem;  // its own layout and grid do not count
  other.layout = Layout::parse("striped");
  other.grid.ulysses_degree = 2;
  const ScheduleChoice b = choose(other, "auto", "auto", both, default_cluster());
  EXPECT_EQ(a.schedule, b.schedule);
  EXPECT_EQ(a.layout, b.layout);
  EXPECT_EQ(a.seconds, b.seconds);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (std::size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(a.candidates[i].schedule, b.candidates[i].schedule);
    EXPECT_EQ(a.candidates[i].time(), b.candidates[i].time());
  }
}

// Of the candidates near the fastest alone the one that a run makes fastest wins, and not one that nobody
// asked about.
TEST(Choose, LooksBesideWhatElseTravels) {
  const plan::Problem problem = problem_of(2, 8, "causal", 1 << 17, 8);
  const ScheduleChoice alone = choose(problem, "auto", "zigzag", both, default_cluster());
  const std::string second = alone.candidates[1].schedule;
  ASSERT_LT(alone.candidates[1].time(), 1.25 * alone.seconds);
  std::vector<std::string> asked;
  const LayerSeconds seconds = [&](const std::string& schedule, const plan::Problem& of, const Selected&) {
    EXPECT_EQ(of.layout.to_string(), "zigzag");
    EXPECT_EQ(of.mask.outline(), problem.mask.outline());
    asked.push_back(schedule);
    if (schedule == alone.schedule) fail("not in this run");
    return schedule == second ? 10.0 : 20.0;
  };
  const ScheduleChoice beside =
      choose(problem, "auto", "zigzag", both, default_cluster(), {.layer_seconds = seconds});
  EXPECT_EQ(beside.schedule, second);
  EXPECT_EQ(beside.seconds, 10);
  for (const ScheduleCandidate& candidate : alone.candidates) {
    const bool near = candidate.seconds && *candidate.seconds <= 1.25 * alone.seconds;
    EXPECT_TRUE(near || std::ranges::count(asked, candidate.schedule) == 0) << candidate.schedule;
  }
  const auto refused = std::ranges::find(beside.candidates, alone.schedule, &ScheduleCandidate::schedule);
  EXPECT_EQ(refused->reason, "not in this run");
  // Layers with other masks add up.
  const ScheduleChoice layers = choose(problem, "auto", "zigzag", both, default_cluster(),
                                       {.layers = {{problem.mask, 3}}, .layer_seconds = seconds});
  EXPECT_EQ(layers.seconds, 30);
}

TEST(Choose, KeepsWithinTheMemoryLimit) {
  const plan::Problem problem = problem_of(1, 8, "full", 1 << 15, 8);
  const ScheduleChoice free = choose(problem, "auto", "contiguous", both, default_cluster());
  const auto gathered = std::ranges::find(free.candidates, "all-gather", &ScheduleCandidate::schedule);
  ASSERT_NE(gathered, free.candidates.end());
  const ScheduleChoice limited = choose(problem, "auto", "contiguous", both, default_cluster(),
                                        {.memory_limit = gathered->buffer_bytes - 1});
  const auto refused = std::ranges::find(limited.candidates, "all-gather", &ScheduleCandidate::schedule);
  EXPECT_THAT(refused->reason, HasSubstr("more than the limit"));
  EXPECT_LT(limited.candidates.front().buffer_bytes, gathered->buffer_bytes);
  EXPECT_THAT(
      error_text([&] { choose(problem, "auto", "auto", both, default_cluster(), {.memory_limit = 1}); }),
      mentions("schedule", "limit of 1"));
}

TEST(Choose, NamesWhatDoesNotExist) {
  const plan::Problem problem = problem_of(1, 4, "full", 64);
  EXPECT_THAT(error_text([&] {
                choose(problem, "spiral", "auto", both, default_cluster(), {.schedule_field = "--schedule"});
              }),
              mentions("--schedule", "spiral"));
  EXPECT_THAT(error_text([&] {
                choose(problem, "auto", "wavy", both, default_cluster(), {.layout_field = "--layout"});
              }),
              mentions("--layout", "wavy"));
  EXPECT_THAT(error_text([&] { choose(problem, "helper-worker", "auto", both, default_cluster()); }),
              mentions("no schedule serves", "helper-worker"));
}

}  // namespace
}  // namespace annulus::simulator
