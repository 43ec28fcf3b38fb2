// What must hold for every schedule, and what the papers claim of some.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/support.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;

/// The plan, or nothing where the schedule refuses the problem.
std::optional<plan::Plan> try_plan(const std::string& name, const plan::Problem& problem, Pass pass) {
  try {
    return plan::make_plan(name, problem, pass);
  } catch (const Error&) {
    return std::nullopt;
  }
}

plan::Problem problem_of(int nodes, int ranks_per_node, std::string_view layout, std::string_view mask,
                         std::int64_t tokens) {
  plan::Problem problem = plan::test::on_nodes(nodes, ranks_per_node, tokens, layout, mask);
  problem.heads = 8;
  problem.dtype = DType::bf16;
  return problem;
}

void for_plans(const std::function<void(const plan::Plan&)>& check) {
  int plans = 0;
  for (const int nodes : {1, 2}) {
    for (const char* layout : {"contiguous", "zigzag", "striped"}) {
      for (const char* mask : {"full", "causal", "window:9,0", "documents:0,17,50"}) {
        const plan::Problem problem = problem_of(nodes, 3, layout, mask, 101);
        for (std::string name : plan::schedule_names()) {
          if (name == "hybrid:HxC") name = nodes == 2 ? "hybrid:2x3" : "hybrid:3x1";
          for (const Pass pass : {Pass::forward, Pass::backward}) {
            const auto plan = try_plan(name, problem, pass);
            if (!plan) continue;
            SCOPED_TRACE(name + " " + layout + " " + mask);
            check(*plan);
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 200);
}

TEST(SimulateSchedules, BytesAndPairsAreConserved) {
  for_plans([](const plan::Plan& plan) {
    const Simulation s = simulate(plan, default_cluster());
    const plan::Problem& problem = plan.problem;
    std::int64_t pairs = 0;
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      const RankSummary& r = s.ranks[rank];
      const plan::Traffic traffic = plan::traffic(plan, rank);
      EXPECT_EQ(sum(r.sent, LinkClass::inter_node), traffic.sent_bytes_inter_node);
      EXPECT_EQ(sum(r.sent, LinkClass::intra_node) + sum(r.sent, LinkClass::inter_node), traffic.sent_bytes);
      EXPECT_EQ(sum(r.received, LinkClass::intra_node) + sum(r.received, LinkClass::inter_node),
                traffic.received_bytes);
      EXPECT_EQ(r.pairs, traffic.pairs);
      EXPECT_NEAR(r.computing + r.exposed_communication, r.end, 1e-12);
      EXPECT_LE(r.end, s.time);
      pairs += r.pairs;
    }
    const PositionMap all = Layout().shard(problem.mask.tokens(), 1, 0);
    EXPECT_EQ(pairs, problem.mask.pairs(all, all) * problem.heads);
  });
}

TEST(SimulateSchedules, NoStepBeginsBeforeWhatItWaitsForHasArrived) {
  for_plans([](const plan::Plan& plan) {
    const Simulation s = simulate(plan, default_cluster(), Detail::timeline);
    std::map<std::tuple<int, int, plan::Channel>, std::vector<TransferSpan>> streams;
    for (const TransferSpan& t : s.timeline.transfers) {
      EXPECT_LT(t.start, t.end);
      streams[{t.from, t.to, t.channel}].push_back(t);
    }
    for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
      std::vector<double> ready(static_cast<std::size_t>(plan.steps));
      std::map<std::tuple<int, int, plan::Channel>, std::size_t> received;
      for (const plan::Step& step : rank_steps(plan, rank)) {
        for (const plan::Transfer& receive : step.receives) {
          const std::tuple key(receive.peer, rank, receive.channel);
          const TransferSpan& span = streams.at(key).at(received[key]++);
          EXPECT_EQ(span.tensor, receive.slice.tensor);
          EXPECT_EQ(span.owner, receive.slice.owner);
          double& time = ready[receive.wait];
          time = std::max(time, span.end);
        }
      }
      double free = 0;
      for (const ComputeSpan& c : s.timeline.computes) {
        if (c.rank != rank) continue;
        EXPECT_GE(c.start, free);
        for (int step = 0; step <= c.step; ++step) EXPECT_GE(c.start, ready[step]);
        free = c.end;
      }
    }
  });
}

TEST(SimulateSchedules, TheSameTwice) {
  const plan::Plan plan =
      plan::make_topology_burst(problem_of(2, 4, "zigzag", "causal", 4096), Pass::backward);
  const Simulation a = simulate(plan, default_cluster()), b = simulate(plan, default_cluster());
  EXPECT_EQ(a.time, b.time);
  for (std::size_t r = 0; r < a.ranks.size(); ++r)
    EXPECT_EQ(a.ranks[r].exposed_communication, b.ranks[r].exposed_communication);
}

/// Seconds for which transfers keep the links between nodes, were each alone on its NIC.
double time_between_nodes(const plan::Plan& plan, const Cluster& cluster) {
  const Simulation s = simulate(plan, cluster);
  std::int64_t most = 0;
  for (const RankSummary& r : s.ranks) most = std::max(most, sum(r.sent, LinkClass::inter_node));
  return static_cast<double>(most) / cluster.inter_node.bandwidth;
}

TEST(SimulateSchedules, TopologyBurstSpreadsWhatGoesBetweenNodesOverTheRails) {
  const plan::Problem problem = problem_of(2, 4, "contiguous", "full", 1 << 14);
  const Cluster cluster = default_cluster();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const plan::Plan flat = plan::make_burst(problem, pass);
    const plan::Plan aware = plan::make_topology_burst(problem, pass);
    EXPECT_LT(time_between_nodes(aware, cluster), 0.5 * time_between_nodes(flat, cluster));
    EXPECT_LT(simulate(aware, cluster).time, simulate(flat, cluster).time);
  }
}

TEST(SimulateSchedules, HelpersShortenTheContiguousCausalRing) {
  plan::Problem problem = problem_of(1, 8, "contiguous", "causal", 1 << 20);
  problem.head_dim = 128;
  problem.batch = 1;
  const double ring = simulate(plan::make_ring(problem, Pass::forward), default_cluster()).time;
  const double helped = simulate(plan::make_helper_worker(problem, Pass::forward), default_cluster()).time;
  // Compute-bound: the last rank's 7.5 shard pairs against half a shard pair and four rounds.
  EXPECT_NEAR(ring / helped, 7.5 / 4.5, 0.02);
}

}  // namespace
}  // namespace annulus::simulator
