// What a rank sends and receives under the full mask, exactly, against the formulas of the papers: for every
// grouping of heads, and, where a formula holds for them, for lengths that the ranks do not divide.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <annulus/plan/schedules.hpp>

#include "plan/check_plan.hpp"
#include "support/schedule_cases.hpp"

namespace annulus::plan {
namespace {

using test::Expected;

struct Heads {
  int query, key;
};
const std::vector<Heads> groupings = {{8, 8}, {9, 3}, {8, 2}, {8, 1}};  // MHA, GQA, MQA
const std::vector<int> rank_counts = {2, 3, 4, 5, 6, 8, 16};

Problem full(int ranks, std::int64_t tokens, const Heads& heads, DType type = DType::f32) {
  Problem problem = test::make_problem(ranks, tokens, "zigzag", "full", heads.query, heads.key);
  problem.activation = type;
  return problem;
}

/// Elements of one token of all sequences.
struct Row {
  std::int64_t q, kv, number;
  explicit Row(const Problem& p)
      : q(std::int64_t{p.batch} * p.heads * p.head_dim),
        kv(std::int64_t{p.batch} * p.kv_heads * p.head_dim),
        number(std::int64_t{p.batch} * p.heads) {}
};

template <class Check>
void for_cases(const Check& check) {
  for (const int ranks : rank_counts) {
    for (const Heads& heads : groupings) {
      SCOPED_TRACE(testing::Message()
                   << ranks << " ranks, " << heads.query << " heads, " << heads.key << " kv");
      check(ranks, heads);
    }
  }
}

/// BurstEngine §3.1: (G−1)/G of 2Nd forward, of 4Nd backward (ring) or 3Nd + 2N for each head (Burst).
TEST(PublishedCounts, RingsPerRank) {
  for_cases([](int ranks, const Heads& heads) {
    const std::int64_t n = 24 * ranks, share = n * (ranks - 1) / ranks;
    const Problem problem = full(ranks, n, heads);
    const Row row(problem);
    const auto sent = [&](const char* schedule, Pass pass, int rank) {
      const Traffic found = traffic(make_plan(schedule, problem, pass), rank);
      std::int64_t received = 0;
      for (const std::int64_t elements : found.received) received += elements;
      EXPECT_EQ(received, found.total_sent());
      return found.total_sent();
    };
    for (int rank = 0; rank < ranks; ++rank) {
      for (const char* schedule : {"ring", "burst", "topology-burst", "hierarchical", "double-ring"}) {
        if (annulus::test::documented_refusal(schedule, problem)) continue;
        EXPECT_EQ(sent(schedule, Pass::forward, rank), 2 * share * row.kv) << schedule;
        const bool queries_travel = std::string_view(schedule).ends_with("burst");
        EXPECT_EQ(sent(schedule, Pass::backward, rank),
                  queries_travel ? share * (3 * row.q + 2 * row.number) : 4 * share * row.kv)
            << schedule;
      }
    }
  });
}

/// In bytes, with 16-bit activations and fp32 gradients and numbers of rows: a token costs Burst's backward
/// 8·h_q·d + 8·h_q, that of the K/V ring 12·h_kv·d. So the grouping of heads decides which of them moves
/// less.
TEST(PublishedCounts, BytesOfWireTypes) {
  for_cases([](int ranks, const Heads& heads) {
    for (const DType type : {DType::bf16, DType::f16}) {
      Problem problem = full(ranks, 24 * ranks, heads, type);
      problem.head_dim = 128;
      const std::int64_t tokens = problem.batch * std::int64_t{24} * (ranks - 1), d = problem.head_dim;
      const std::int64_t burst = tokens * (8 * heads.query * d + 8 * heads.query);
      const std::int64_t ring = tokens * 12 * heads.key * d;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(traffic(make_burst(problem, Pass::backward), rank).sent_bytes, burst);
        EXPECT_EQ(traffic(make_ring(problem, Pass::backward), rank).sent_bytes, ring);
        EXPECT_EQ(traffic(make_ring(problem, Pass::forward), rank).sent_bytes, tokens * 4 * heads.key * d);
      }
      EXPECT_EQ(burst < ring, heads.query == heads.key);
    }
  });
}

/// A gradient sets out from the first remote rank that computes with its shard, is added to by each rank
/// behind it, and returns from the last: G − 1 hops.
TEST(PublishedCounts, GradientsStartAtTheirFirstForeignRank) {
  for (const auto& [schedule, gradient] :
       {std::pair{"ring", Tensor::dk}, {"ring", Tensor::dv}, {"burst", Tensor::dq}}) {
    for (const int ranks : rank_counts) {
      const Plan plan = make_plan(schedule, full(ranks, 24 * ranks, {8, 2}), Pass::backward);
      std::vector<std::vector<std::pair<int, int>>> hops(
          static_cast<std::size_t>(ranks));  // step, sender by owner
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Step& step : plan.rank_steps(rank)) {
          for (const Transfer& send : step.sends) {
            if (send.slice.tensor == gradient) {
              EXPECT_EQ(send.peer, (rank + 1) % ranks);
              hops[static_cast<std::size_t>(send.slice.owner)].emplace_back(send.post, rank);
            }
          }
        }
      }
      for (int owner = 0; owner < ranks; ++owner) {
        auto& way = hops[static_cast<std::size_t>(owner)];
        std::ranges::sort(way);
        ASSERT_EQ(std::ssize(way), ranks - 1) << schedule << " on " << ranks << " ranks";
        for (int hop = 0; hop < ranks - 1; ++hop) {
          EXPECT_EQ(way[static_cast<std::size_t>(hop)].second, (owner + 1 + hop) % ranks);
        }
      }
    }
  }
}

/// All-gather: the shards of all others come in, the own one goes to all others; reduce-scatter: the other
/// way round.
TEST(PublishedCounts, AllGatherPerRank) {
  for_cases([](int ranks, const Heads& heads) {
    const std::int64_t n = 24 * ranks + 5;
    const Problem problem = full(ranks, n, heads);
    const std::int64_t kv = Row(problem).kv;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t own = test::rows(problem, rank), out = (ranks - 1) * own * kv, in = (n - own) * kv;
      Expected expected;
      for (const Tensor t : {Tensor::k, Tensor::v}) expected.set(t, out, in);
      test::expect_traffic(make_all_gather(problem, Pass::forward), rank, expected);
      for (const Tensor t : {Tensor::dk, Tensor::dv}) expected.set(t, in, out);
      test::expect_traffic(make_all_gather(problem, Pass::backward), rank, expected);
    }
  });
}

/// All-to-all: of q, dO (and back: o, dQ) each rank keeps the share 1/G of its rows, (G−1)/G of Nd/G travel;
/// K/V heads go to every rank with a query head of theirs, max(1, G/h_kv) times each.
TEST(PublishedCounts, AllToAllPerRank) {
  for (const int ranks : {2, 4, 8}) {
    for (const Heads& heads : {Heads{8, 8}, {8, 4}, {8, 2}, {8, 1}, {16, 4}}) {
      const std::int64_t c = 24;  // rows of a rank
      const Problem problem = full(ranks, c * ranks, heads);
      const Row row(problem);
      const std::int64_t copies = std::max(1, ranks / heads.key);
      const std::int64_t q = c * row.q * (ranks - 1) / ranks, number = c * row.number * (ranks - 1) / ranks;
      const std::int64_t kv = c * row.kv * copies * (ranks - 1) / ranks;
      Expected forward, backward;
      for (const Tensor t : {Tensor::q, Tensor::o}) forward.set(t, q, q);
      for (const Tensor t : {Tensor::k, Tensor::v}) forward.set(t, kv, kv);
      forward.set(Tensor::lse, number, number);
      for (const Tensor t : {Tensor::q, Tensor::d_o, Tensor::dq}) backward.set(t, q, q);
      for (const Tensor t : {Tensor::k, Tensor::v, Tensor::dk, Tensor::dv}) backward.set(t, kv, kv);
      for (const Tensor t : {Tensor::lse, Tensor::d}) backward.set(t, number, number);
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(testing::Message()
                     << "rank " << rank << " of " << ranks << ", " << heads.key << " kv heads");
        test::expect_traffic(make_ulysses(problem, Pass::forward), rank, forward);
        test::expect_traffic(make_ulysses(problem, Pass::backward), rank, backward);
      }
    }
  }
}

/// DistFlashAttn §3.2 by rank. In round t = 1 … ⌊P/2⌋ rank r is the worker of a pair when r ≥ t, and helps
/// when r < t and 2t < P; the rank t places behind it works with r's keys when there is one, else helps r.
struct HelperWorkerRounds {
  std::int64_t works = 0, helps = 0, has_worker = 0, has_helper = 0;
  HelperWorkerRounds(int rank, int ranks) {
    for (int t = 1; 2 * t <= ranks; ++t) {
      works += rank >= t;
      helps += rank < t && 2 * t < ranks;
      has_worker += rank + t < ranks;
      has_helper += rank + t >= ranks && 2 * t < ranks;
    }
  }
};

TEST(PublishedCounts, HelperWorkerPerRankAndOnAverage) {
  for_cases([](int ranks, const Heads& heads) {
    const std::int64_t c = 12;
    Problem problem = full(ranks, c * ranks, heads);
    problem.layout = Layout();
    problem.mask = Mask::parse("causal", c * ranks);
    const Row row(problem);
    const std::int64_t q = c * row.q, kv = c * row.kv, number = c * row.number;
    const Plan forward = make_helper_worker(problem, Pass::forward),
               backward = make_helper_worker(problem, Pass::backward);
    std::int64_t sent_forward = 0, sent_backward = 0, helped = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      const HelperWorkerRounds r(rank, ranks);
      Expected there;
      for (const Tensor t : {Tensor::k, Tensor::v}) there.set(t, r.has_worker * kv, r.works * kv);
      there.set(Tensor::q, r.has_helper * q, r.helps * q);
      Expected back = there;
      there.set(Tensor::o, r.helps * q, r.has_helper * q);
      there.set(Tensor::lse, r.helps * number, r.has_helper * number);
      back.set(Tensor::d_o, r.has_helper * q, r.helps * q);
      for (const Tensor t : {Tensor::lse, Tensor::d}) back.set(t, r.has_helper * number, r.helps * number);
      back.set(Tensor::dq, r.helps * q, r.has_helper * q);
      for (const Tensor t : {Tensor::dk, Tensor::dv}) back.set(t, r.works * kv, r.has_worker * kv);
      test::expect_traffic(forward, rank, there);
      test::expect_traffic(backward, rank, back);
      sent_forward += traffic(forward, rank).total_sent();
      sent_backward += traffic(backward, rank).total_sent();
      helped += r.helps;
    }
    if (heads.query != heads.key) return;
    // On average over ranks (P−1)/P of Nd and of 2Nd. Helpers return an LSE besides; their backward gets two
    // numbers a row in the place of O, which the paper sends.
    const std::int64_t nd = (ranks - 1) * q;
    EXPECT_EQ(sent_forward, ranks * nd + helped * number);
    EXPECT_EQ(sent_backward, ranks * 2 * nd - helped * (q - 2 * number));
  });
}

/// Topology-aware rings: of I nodes with J ranks, (J−1)·I of the G − 1 hops of a shard are inside nodes and I
/// − 1 between them, for what is computed with and for sums alike.
TEST(PublishedCounts, NodeRingsInsideAndBetweenNodes) {
  for (const auto& [nodes, size] :
       {std::pair{2, 2}, {2, 4}, {4, 2}, {3, 3}, {4, 4}, {8, 2}, {2, 1}, {1, 4}}) {
    for (const Heads& heads : groupings) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const int ranks = nodes * size;
        Problem problem = full(ranks, 24 * ranks, heads, type);
        problem.topology = Topology::uniform(ranks, size);
        const Row row(problem);
        const auto stored = static_cast<std::int64_t>(size_of(type));
        const std::int64_t kv = 24 * 2 * row.kv * stored, kv_sums = 24 * 2 * row.kv * 4;
        const std::int64_t q = 24 * (2 * row.q * stored + 2 * row.number * 4), q_sums = 24 * row.q * 4;
        for (const char* schedule : {"topology-burst", "hierarchical", "double-ring"}) {
          const bool queries = std::string_view(schedule) == "topology-burst";
          const std::int64_t of_forward = kv, of_backward = queries ? q + q_sums : kv + kv_sums;
          for (int rank = 0; rank < ranks; ++rank) {
            for (const auto& [pass, bytes] :
                 {std::pair{Pass::forward, of_forward}, {Pass::backward, of_backward}}) {
              SCOPED_TRACE(testing::Message()
                           << schedule << " " << name_of(pass) << " " << nodes << "x" << size);
              const Traffic found = traffic(make_plan(schedule, problem, pass), rank);
              EXPECT_EQ(found.sent_bytes_inter_node, (nodes - 1) * bytes);
              EXPECT_EQ(found.sent_bytes - found.sent_bytes_inter_node, (size - 1) * nodes * bytes);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace annulus::plan
