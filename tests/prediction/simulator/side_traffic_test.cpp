// What travels beside a plan, worked out by hand and held against bounds.
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/plan/schedules.hpp>

#include "prediction/simulator/side_traffic.hpp"
#include "prediction/simulator/support.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;
using test::hand_cluster;
using test::hand_problem;
using Way = SideFlow::Way;

constexpr double relative = 1e-9, instantly = 1e12;  // FLOP/s at which computes take no time

/// Seconds until all has ended, and those until the plan has.
struct Ends {
  double all = 0, plan = 0;
};
Ends ends_of(const plan::Plan& plan, const Cluster& cluster, const SideTraffic& traffic) {
  const PlanBeside made = simulate_beside(plan, cluster, {}, traffic);
  return {.all = std::max(made.simulation.time, made.traffic_ended), .plan = made.simulation.time};
}

/// Two exchanges of 400 bytes inside of a node, 0.8 s alone.
plan::Plan ring_of_three() {
  return plan::make_ring(hand_problem(3, 3), Pass::forward);
}
/// One exchange of 400 bytes between two nodes, 4 s alone.
plan::Plan ring_between() {
  return plan::make_ring(hand_problem(2, 1), Pass::forward);
}

TEST(SideTraffic, FlowsOnALinkTakeTheSumOfTheirBytes) {
  const Cluster cluster = hand_cluster(instantly);
  const Ends ends = ends_of(ring_of_three(), cluster, {{{{Way::intra_node, 500, 1000}}}});
  EXPECT_NEAR(ends.all, (800 + 500) / 1000.0, 1e-6);
  // Halves until the collective has sent its 500 bytes after 1 s; the ring has 300 left then.
  EXPECT_NEAR(ends.plan, 1.3, 1e-6);
  EXPECT_NEAR(ends_of(ring_between(), cluster, {{{{Way::inter_node, 300, 100}}}}).all, 7, 1e-6);
}

// Three quarters of the port while it lasts, so the ring has 500 of its 800 bytes left at 1.2 s.
TEST(SideTraffic, EachMessageOfAFlowHasAShare) {
  const PlanBeside made =
      simulate_beside(ring_of_three(), hand_cluster(instantly), {}, {{{{Way::intra_node, 900, 1000, 3}}}});
  EXPECT_NEAR(made.traffic_ended, 1.2, 1e-6);
  EXPECT_NEAR(made.simulation.time, 1.7, 1e-6);
}

TEST(SideTraffic, FlowsOnOtherLinksDisturbNobody) {
  const Cluster cluster = hand_cluster(instantly);
  for (const Way way : {Way::inter_node, Way::to_host, Way::from_host}) {
    const PlanBeside made =
        simulate_beside(ring_of_three(), cluster, {}, {{{{way, 100, 100}, {way, 30, 100}}}});
    EXPECT_NEAR(made.simulation.time, 0.8, 1e-6);
    EXPECT_NEAR(made.traffic_ended, 1.3, 1e-6);
    EXPECT_NEAR(simulate_beside(ring_of_three(), cluster, {}, {{{{way, 30, 100}}}}).traffic_ended, 0.3, 1e-6);
    ASSERT_EQ(made.left.queues.size(), 1U);
    ASSERT_EQ(made.left.queues[0].size(), 2U);
    EXPECT_NEAR(made.left.queues[0][0].bytes, 20, 1e-3);
    EXPECT_EQ(made.left.queues[0][1].bytes, 30);
  }
  EXPECT_NEAR(ends_of(ring_between(), cluster, {{{{Way::intra_node, 9000, 1000}}}}).plan, 4, 1e-6);
}

// A GPU, its NIC and its host: messages between nodes and copies share what joins them, direction by
// direction.
TEST(SideTraffic, CopiesShareTheWayToTheNic) {
  Cluster cluster = hand_cluster(instantly);
  cluster.memory.host_copy = 100;
  for (const Way way : {Way::to_host, Way::from_host})
    EXPECT_NEAR(ends_of(ring_between(), cluster, {{{{way, 200, 100}}}}).all, 6, 1e-6);
  EXPECT_NEAR(
      ends_of(ring_between(), cluster, {{{{Way::to_host, 200, 100}}, {{Way::from_host, 200, 100}}}}).all, 6,
      1e-6);
  cluster.memory.host_copy = 1000;  // wide enough for both
  EXPECT_NEAR(ends_of(ring_between(), cluster, {{{{Way::to_host, 400, 100}}}}).plan, 4, 1e-6);
}

TEST(SideTraffic, QueuesGoTogetherAndTheirFlowsOneAfterTheOther) {
  Cluster cluster = hand_cluster(1);
  const SideTraffic traffic{
      {{{Way::inter_node, 100, 100}, {Way::intra_node, 1000, 1000}}, {{Way::to_host, 50, 100}}}};
  const SideProgress all = advance(traffic, cluster);
  EXPECT_TRUE(all.left.empty());
  EXPECT_NEAR(all.ended[0], 2, relative);
  EXPECT_NEAR(all.ended[1], 0.5, relative);
  const SideProgress some = advance(traffic, cluster, 1.25);
  EXPECT_TRUE(some.left.queues[1].empty());
  ASSERT_EQ(some.left.queues[0].size(), 1U);
  EXPECT_EQ(some.left.queues[0][0].way, Way::intra_node);
  EXPECT_NEAR(some.left.queues[0][0].bytes, 750, 1e-6);
  EXPECT_TRUE(advance({}, cluster).left.empty());
}

TEST(SideTraffic, WithoutTrafficPlansAreAsTheyWere) {
  const Cluster cluster = hand_cluster(3000, 0.01, 0.02);
  for (const char* schedule : {"ring", "burst", "topology-burst", "double-ring", "all-gather"})
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const plan::Plan plan = plan::make_plan(schedule, hand_problem(8, 4), pass);
      const Simulation alone = simulate(plan, cluster, Detail::times);
      for (const SideTraffic& none : {SideTraffic(), SideTraffic{{{}, {}}}}) {
        const Simulation beside = simulate_beside(plan, cluster, {}, none).simulation;
        EXPECT_EQ(beside.time, alone.time) << schedule;
        for (std::size_t rank = 0; rank < alone.ranks.size(); ++rank)
          EXPECT_EQ(beside.ranks[rank].exposed_communication, alone.ranks[rank].exposed_communication);
      }
    }
}

// Neither faster than the slowest of all alone, nor slower than one after the other.
TEST(SideTraffic, TimesLieBetweenTheLongestAndTheSum) {
  Cluster cluster = hand_cluster(20000, 0.01, 0.02);
  cluster.memory.host_copy = 120;
  for (const char* schedule : {"ring", "burst", "topology-burst", "double-ring"})
    for (const int nics : {0, 1, 2})
      for (const double bytes : {1.0, 70.0, 2500.0}) {
        cluster.nics_per_node = nics;
        const double between = nics == 0 ? 100 : 100.0 * nics / 4;
        const plan::Plan plan = plan::make_plan(schedule, hand_problem(8, 4), Pass::backward);
        const SideTraffic traffic{{{{Way::intra_node, 5 * bytes, 1000}, {Way::inter_node, bytes, between}},
                                   {{Way::to_host, 2 * bytes, 120}},
                                   {{Way::from_host, bytes, 120}}}};
        double longest = simulate(plan, cluster, Detail::times).time, sum = longest;
        for (const SideQueue& queue : traffic.queues) {
          longest = std::max(longest, seconds_alone(queue));
          sum += seconds_alone(queue);
        }
        const Ends ends = ends_of(plan, cluster, traffic);
        EXPECT_GE(ends.all, longest * (1 - relative)) << schedule << ", " << nics << " NICs, " << bytes;
        EXPECT_LE(ends.all, sum * (1 + relative)) << schedule << ", " << nics << " NICs, " << bytes;
        EXPECT_GE(ends.plan, simulate(plan, cluster, Detail::times).time * (1 - relative));
      }
}

// Ranks that repeat each other have the same traffic on their links.
TEST(SideTraffic, RepresentativeRanksStandForAll) {
  const Cluster cluster = hand_cluster(20000);
  const plan::Plan plan = plan::make_ring(hand_problem(96, 4), Pass::forward);
  ASSERT_LT(plan::representative_ranks(plan, plan::RankSubset::automatic, 4), 96);
  plan::Plan every = plan;
  every.period = 0;
  const SideTraffic traffic{
      {{{Way::intra_node, 300, 1000}, {Way::inter_node, 70, 100}}, {{Way::to_host, 60, 80}}}};
  EXPECT_NEAR(ends_of(plan, cluster, traffic).all, ends_of(every, cluster, traffic).all, 1e-6);
}

}  // namespace
}  // namespace annulus::simulator
