// Timelines worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/schedules.hpp>

#include <algorithm>

#include "prediction/simulator/selected.hpp"
#include "prediction/simulator/support.hpp"
#include "support/error_text.hpp"

namespace annulus::simulator {
namespace {

using plan::Pass;
using plan::Tensor;
using test::hand_cluster;
using test::hand_problem;
using ::testing::HasSubstr;

constexpr double tolerance = 1e-9;

TEST(Simulate, ComputeBoundRingHidesItsTransfers) {
  // 2000 FLOP at 2000 FLOP/s: 1 s a shard. K and V share no time: one channel, 0.2 s each, one after another.
  const plan::Plan ring = plan::make_ring(hand_problem(3, 3), Pass::forward);
  const Simulation s = simulate(ring, hand_cluster(2000), Detail::timeline);
  EXPECT_NEAR(s.time, 3, tolerance);
  for (const RankSummary& rank : s.ranks) {
    EXPECT_NEAR(rank.computing, 3, tolerance);
    EXPECT_NEAR(rank.exposed_communication, 0, tolerance);
    EXPECT_EQ(rank.pairs, 300);
  }
  EXPECT_TRUE(s.timeline.waits.empty());
  ASSERT_EQ(s.timeline.computes.size(), 9U);
  ASSERT_EQ(s.timeline.transfers.size(), 12U);
  for (const TransferSpan& t : s.timeline.transfers) {
    EXPECT_NEAR(t.start, t.step + (t.tensor == Tensor::v ? 0.2 : 0), tolerance);
    EXPECT_NEAR(t.end, t.start + 0.2, tolerance);
    EXPECT_EQ(t.bytes, 200);
    EXPECT_EQ(t.link, LinkClass::intra_node);
  }
}

TEST(Simulate, CommunicationBoundRingWaits) {
  // 0.1 s of compute a shard, 0.4 s of transfers: each of the two exchanges is exposed for 0.3 s.
  const plan::Plan ring = plan::make_ring(hand_problem(3, 3), Pass::forward);
  const Simulation s = simulate(ring, hand_cluster(20000), Detail::timeline);
  EXPECT_NEAR(s.time, 0.4 + 0.4 + 0.1, tolerance);
  for (const RankSummary& rank : s.ranks) {
    EXPECT_NEAR(rank.exposed_communication, 0.6, tolerance);
    EXPECT_NEAR(rank.end, 0.9, tolerance);
  }
  ASSERT_EQ(s.timeline.waits.size(), 6U);
  EXPECT_NEAR(s.timeline.waits.front().start, 0.1, tolerance);
  EXPECT_NEAR(s.timeline.waits.front().end, 0.4, tolerance);
}

TEST(Simulate, WithoutOverlapComputeAndTransfersAddUp) {
  // 1 s a shard and 0.4 s an exchange, of which a ring of three has two; in the last step nothing is posted.
  const plan::Plan ring = plan::make_ring(hand_problem(3, 3), Pass::forward);
  const Simulation s = simulate(without_overlap(ring), hand_cluster(2000));
  EXPECT_NEAR(s.time, 3 + 2 * 0.4, tolerance);
  for (const RankSummary& rank : s.ranks) {
    EXPECT_NEAR(rank.computing, 3, tolerance);
    EXPECT_NEAR(rank.exposed_communication, 0.8, tolerance);
    EXPECT_EQ(rank.pairs, 300);
  }
  EXPECT_NEAR(s.imbalance.step, simulate(ring, hand_cluster(2000)).imbalance.step, tolerance);
}

TEST(Simulate, SelectedPairsTakeTheirShareOfTheTimeAndTransfersAllOfIt) {
  // 0.5 s of compute a shard instead of 1 s, and 0.4 s of transfers, which it still hides.
  const plan::Plan ring = plan::make_ring(hand_problem(3, 3), Pass::forward);
  const auto with = [&](const Selected& selected) {
    return simulate(ring, hand_cluster(2000), Detail::totals, plan::RankSubset::automatic, selected);
  };
  EXPECT_NEAR(with({0.5}).time, 1.5, tolerance);
  EXPECT_NEAR(with({0.05}).time, 3 * 0.05 + 2 * (0.4 - 0.05), tolerance);
  EXPECT_EQ(with({0.5}).ranks[1].pairs, 150);
  const Simulation diagonal =
      with({0.3, [](const plan::Problem&, const PositionMap& queries, const PositionMap& keys,
                    plan::HeadRange) { return std::int64_t{queries.front() == keys.front() ? 90 : 0}; }});
  EXPECT_NEAR(diagonal.ranks[0].computing, 0.9, tolerance);
  EXPECT_EQ(diagonal.ranks[2].pairs, 90);
  EXPECT_NEAR(diagonal.imbalance.step, 1, tolerance) << "steps in which nobody computes do not count";
}

/// A causal problem of four heads.
plan::Problem causal_problem(int ranks, const char* layout) {
  plan::Problem problem = hand_problem(ranks, ranks);
  problem.mask = Mask::parse("causal", 37);
  problem.layout = Layout::parse(layout);
  problem.heads = 4;
  problem.kv_heads = 2;
  return problem;
}

TEST(SelectedBlocks, CountTheCausalPairsOfTheirSlashes) {
  const std::vector<std::vector<std::int64_t>> distances = {{0, 2}, {1, 3, 4}};
  const SelectedBlocks blocks(37, 8, distances);
  std::int64_t all = 0;
  for (const char* layout : {"zigzag", "block-striped:8", "block-striped:3"}) {
    const plan::Problem problem = causal_problem(3, layout);
    const plan::Plan ring = plan::make_ring(problem, Pass::forward);
    std::int64_t sum = 0;
    for (int rank = 0; rank < 3; ++rank)
      for (int step = 0; step < ring.steps; ++step)
        for (const plan::Compute& compute : ring.step(rank, step).computes) {
          const PositionMap q = problem.shard(compute.q_shard), k = problem.shard(compute.kv_shard);
          std::int64_t expected = 0;
          for (const auto& of_list : distances)
            for (std::int64_t i = 0; i < q.count; ++i)
              for (std::int64_t j = 0; j < k.count; ++j)
                expected += k(j) <= q(i) && std::ranges::count(of_list, q(i) / 8 - k(j) / 8) > 0 ? 2 : 0;
          EXPECT_EQ(blocks.pairs(problem, compute), expected) << layout;
          sum += expected;
        }
    if (all == 0) all = sum;
    EXPECT_EQ(sum, all) << "of all ranks, whatever the layout";
  }
  EXPECT_NEAR(blocks.density(), double(all) / (4 * 37 * 38 / 2), 1e-12);
}

/// Four heads in two lists, each of whose queries has its own block and drawn ones before it.
bool query_has(int list, std::int64_t query, std::int64_t block) {
  return block == query / 8 || (block < query / 8 && (query * 5 + block * 3 + list) % 7 == 0);
}

SelectedBlocks blocks_of_queries() {
  return SelectedBlocks::of_rows(37, 8, 1, 2, [](int list, std::int64_t query) {
    std::vector<std::int64_t> columns;
    for (std::int64_t block = 0; block <= query / 8; ++block)
      if (query_has(list, query, block)) columns.push_back(block);
    return columns;
  });
}

TEST(SelectedBlocks, OfQueriesCountTheirCausalPairs) {
  const SelectedBlocks blocks = blocks_of_queries();
  std::int64_t all = 0;
  for (int list = 0; list < 2; ++list)
    for (std::int64_t q = 0; q < 37; ++q)
      for (std::int64_t k = 0; k <= q; ++k) all += query_has(list, q, k / 8) ? 2 : 0;
  EXPECT_NEAR(blocks.density(), double(all) / (4 * 37 * 38 / 2), 1e-12);
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:3"}) {
    const plan::Plan ring = plan::make_ring(causal_problem(3, layout), Pass::forward);
    std::int64_t sum = 0;
    for (int rank = 0; rank < 3; ++rank)
      for (int step = 0; step < ring.steps; ++step)
        for (const plan::Compute& compute : ring.step(rank, step).computes)
          sum += blocks.pairs(ring.problem, compute);
    EXPECT_EQ(sum, all) << layout;
  }
}

TEST(SelectedBlocks, CountTheKeysThatNoRankNeeds) {
  constexpr int ranks = 4;
  const SelectedBlocks blocks = blocks_of_queries();
  std::int64_t unneeded = 0;
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:8"}) {
    for (const bool ring : {true, false}) {
      const plan::Problem problem = causal_problem(ranks, layout);
      const plan::Plan plan =
          ring ? plan::make_ring(problem, Pass::forward) : plan::make_all_gather(problem, Pass::forward);
      // (of a query of the rank that may see the key; of one that has its block, too)
      const auto of = [&](int rank, int kv_head, std::int64_t key) {
        bool visible = false, needed = false;
        const PositionMap q = problem.shard(rank);
        for (std::int64_t i = 0; i < q.count; ++i) {
          visible = visible || key <= q(i);
          needed = needed || (key <= q(i) && query_has(kv_head, q(i), key / 8));
        }
        return std::pair(visible, needed);
      };
      ReceivedRows one, all;
      for (int rank = 0; rank < ranks; ++rank)
        for (int step = 0; step < plan.steps; ++step)
          for (const plan::Transfer& t : plan.step(rank, step).receives) {
            if (t.slice.tensor != Tensor::k) continue;
            const PositionMap rows = problem.shard(t.slice.owner).slice(t.slice.rows);
            for (std::int64_t row = 0; row < rows.count; ++row) {
              int visible = 0, needed = 0, visible_onward = 0, needed_onward = 0;
              for (int head = 0; head < 2; ++head) {
                auto [can_see, needs] = of(rank, head, rows(row));
                visible += can_see ? 1 : 0;
                needed += needs ? 1 : 0;
                // A ring brings the shard to the ranks from here to before its owner.
                for (int to = rank; ring && to != t.slice.owner; to = (to + 1) % ranks) {
                  const auto [there, needed_there] = of(to, head, rows(row));
                  can_see = can_see || there;
                  needs = needs || needed_there;
                }
                visible_onward += can_see ? 1 : 0;
                needed_onward += needs ? 1 : 0;
              }
              const auto any = [](int heads) { return heads > 0 ? 1 : 0; };
              one.received += 2;
              one.visible += visible;
              one.unneeded += visible - needed;
              one.visible_onward += visible_onward;
              one.unneeded_onward += visible_onward - needed_onward;
              all.received += 1;
              all.visible += any(visible);
              all.unneeded += any(visible) - any(needed);
              all.visible_onward += any(visible_onward);
              all.unneeded_onward += any(visible_onward) - any(needed_onward);
            }
          }
      const ReceivedKeys found = count_received_keys(plan, blocks);
      EXPECT_EQ(found.of_kv_heads, one) << layout << ring;
      EXPECT_EQ(found.of_all_heads, all) << layout << ring;
      unneeded += found.of_kv_heads.unneeded;
    }
  }
  EXPECT_GT(unneeded, 0);
}

TEST(Simulate, WithoutOverlapEverySchedulesSimulationEndsAndIsNoFaster) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const char* schedule :
         {"ring", "burst", "topology-burst", "double-ring:2", "all-gather", "ulysses"}) {
      plan::Problem problem = hand_problem(4, 2);
      problem.heads = problem.kv_heads = 4;
      const plan::Plan plan = plan::make_plan(schedule, problem, pass);
      const double with = simulate(plan, hand_cluster(2000)).time;
      EXPECT_GE(simulate(without_overlap(plan), hand_cluster(2000)).time, with - tolerance) << schedule;
    }
  }
}

TEST(Simulate, LatencyCountsOnceForMessagesOfAStream) {
  const plan::Plan ring = plan::make_ring(hand_problem(2, 2), Pass::forward);
  const Simulation s = simulate(ring, hand_cluster(20000, 0.5), Detail::timeline);
  EXPECT_NEAR(s.time, 0.4 + 0.5 + 0.1, tolerance);
  for (const TransferSpan& t : s.timeline.transfers) {
    EXPECT_NEAR(t.left, t.start + 0.2, tolerance);
    EXPECT_NEAR(t.end, t.left + 0.5, tolerance);
  }
  EXPECT_NEAR(s.ranks[0].exposed_communication, 0.8, tolerance);
}

TEST(Simulate, RanksThatShareARailShareItsBandwidth) {
  // Two nodes of two ranks, only messages between nodes: each rank sends 200 bytes to its counterpart.
  plan::test::EditedPlan edited(Pass::forward, hand_problem(4, 2), 2);
  for (int rank = 0; rank < 4; ++rank)
    edited.message(rank, (rank + 2) % 4, edited.plan.problem.whole(Tensor::k, rank), 0, plan::local_slot, 1);
  const plan::Plan plan = edited.finish();
  Cluster cluster = hand_cluster(1, 0, 0.25);
  EXPECT_NEAR(simulate(plan, cluster).time, 2.25, tolerance);  // a NIC for each rank
  cluster.nics_per_node = 1;
  EXPECT_NEAR(simulate(plan, cluster).time, 4.25, tolerance);
  cluster.nics_per_node = 2;
  EXPECT_NEAR(simulate(plan, cluster).time, 2.25, tolerance);
}

TEST(Simulate, RanksThatDoNotFillTheirRail) {
  // Two nodes of two ranks and one NIC of 100 bytes/s: rank 0 sends 200 bytes to rank 2, then rank 1 as many
  // to rank 3 as well.
  for (const bool both : {false, true}) {
    plan::test::EditedPlan edited(Pass::forward, hand_problem(4, 2), 2);
    for (int rank = 0; rank <= (both ? 1 : 0); ++rank)
      edited.message(rank, rank + 2, edited.plan.problem.whole(Tensor::k, rank), 0, plan::local_slot, 1);
    const plan::Plan plan = edited.finish();
    Cluster cluster = hand_cluster(1, 0, 0);
    cluster.inter_node.bandwidth = 100;
    cluster.nics_per_node = 1;
    EXPECT_NEAR(simulate(plan, cluster).time, both ? 4 : 2, tolerance);
    cluster.rank_bandwidth = 80;  // two of them share the NIC, one alone does not fill it
    EXPECT_NEAR(simulate(plan, cluster).time, both ? 4 : 2.5, tolerance);
    cluster.rank_bandwidth = 40;
    EXPECT_NEAR(simulate(plan, cluster).time, 5, tolerance);
  }
}

TEST(Simulate, PortsAreSharedUntilTheShorterFlowEnds) {
  // Rank 0 sends 200 bytes to rank 1 and 100 to rank 2: both at 500 bytes/s until 0.2 s, then 100 bytes are
  // left at 1000 bytes/s.
  plan::test::EditedPlan edited(Pass::forward, hand_problem(3, 3), 2);
  const plan::TensorSlice whole = edited.plan.problem.whole(Tensor::k, 0);
  plan::TensorSlice half = whole;
  half.rows.end = 5;
  edited.message(0, 1, whole, 0, plan::local_slot, 1);
  edited.message(0, 2, half, 0, plan::local_slot, 1);
  const Simulation s = simulate(edited.finish(), hand_cluster(1), Detail::timeline);
  ASSERT_EQ(s.timeline.transfers.size(), 2U);
  EXPECT_NEAR(s.timeline.transfers[0].end, 0.3, tolerance);
  EXPECT_NEAR(s.timeline.transfers[1].end, 0.2, tolerance);
  EXPECT_NEAR(s.ranks[0].end, 0.3, tolerance);
  EXPECT_NEAR(s.ranks[2].end, 0.2, tolerance);
  EXPECT_EQ(s.ranks[1].buffer_bytes, 200);
  EXPECT_EQ(s.ranks[2].buffer_bytes, 100);
  EXPECT_EQ(s.ranks[0].buffer_bytes, 0);
}

TEST(Simulate, TransfersSetOutWhenBothSidesHavePosted) {
  // Rank 1 computes for 2 s in step 0 and posts in step 1; rank 0, idle, has posted long before.
  plan::test::EditedPlan edited(Pass::forward, hand_problem(2, 2), 3);
  const plan::TensorSlice k = edited.plan.problem.whole(Tensor::k, 0);
  edited.message(0, 1, k, 1, plan::local_slot, 1);
  edited.at(0, 1).sends.front().wait = 2;
  edited.at(1, 1).receives.front().wait = 2;
  plan::Compute own;
  own.q_shard = own.kv_shard = 1;
  own.q_rows = own.kv_rows = {0, 10};
  own.heads = {0, 1};
  edited.at(1, 0).computes.push_back(own);
  const Simulation s = simulate(edited.finish(), hand_cluster(1000), Detail::timeline);
  ASSERT_EQ(s.timeline.transfers.size(), 1U);
  EXPECT_NEAR(s.timeline.transfers[0].start, 2, tolerance);
  EXPECT_NEAR(s.ranks[0].exposed_communication, 2.2, tolerance);
  EXPECT_NEAR(s.ranks[1].exposed_communication, 0.2, tolerance);
  EXPECT_NEAR(s.imbalance.worker, 2, tolerance);  // one of two ranks does everything
  EXPECT_NEAR(s.imbalance.step, 1, tolerance);    // in the only step with work
}

TEST(Simulate, ContiguousCausalRingIsImbalanced) {
  plan::Problem problem = hand_problem(2, 2);
  problem.mask = Mask::parse("causal", 20);
  const Simulation s = simulate(plan::make_ring(problem, Pass::forward), hand_cluster(1e9));
  // Rank 0: 55 pairs and nothing; rank 1: 55 and 100. Mean 105.
  EXPECT_EQ(s.ranks[0].pairs, 55);
  EXPECT_EQ(s.ranks[1].pairs, 155);
  EXPECT_NEAR(s.imbalance.worker, 155.0 / 105, tolerance);
  EXPECT_NEAR(s.imbalance.step, (2 + 100 / 77.5) / 2, tolerance);
}

TEST(Simulate, BlocksWithMaskedPairsHaveARateOfTheirOwn) {
  plan::Problem problem = hand_problem(2, 2);
  problem.mask = Mask::parse("causal", 20);
  Cluster cluster = hand_cluster(1);
  cluster.kernels = {{Pass::forward, 8, 0, 2000, {}, BlockMask::full},
                     {Pass::forward, 8, 0, 1100, {}, BlockMask::causal},
                     {Pass::backward, 8, 0, 1}};
  const Simulation s = simulate(plan::make_ring(problem, Pass::forward), cluster);
  // 1 s for the 55 pairs of a diagonal block, and 1 s for the 100 pairs of the block of all.
  EXPECT_NEAR(s.ranks[0].computing, 1, tolerance);
  EXPECT_NEAR(s.ranks[1].computing, 2, tolerance);
}

TEST(Simulate, BackwardCountsFiveProducts) {
  const plan::Plan burst = plan::make_burst(hand_problem(2, 2), Pass::backward);
  const Simulation s = simulate(burst, hand_cluster(5000));
  EXPECT_NEAR(s.ranks[0].computing, 2, tolerance);
}

TEST(Simulate, APlanThatCannotEndNamesRankAndStep) {
  plan::test::EditedPlan edited(Pass::forward, hand_problem(2, 2), 2);
  edited.message(0, 1, edited.plan.problem.whole(Tensor::k, 0), 0, plan::local_slot, 1);
  edited.at(0, 0).sends.clear();
  const plan::Plan plan = edited.finish();
  EXPECT_THAT(error_text([&] { simulate(plan, hand_cluster(1)); }),
              HasSubstr("rank 1 cannot begin step 1, which waits for 1 transfers"));
}

}  // namespace
}  // namespace annulus::simulator
