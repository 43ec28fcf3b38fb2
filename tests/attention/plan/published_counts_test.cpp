// What a rank sends and receives under the full mask, exactly, against the formulas of the papers: for every
// grouping of heads, and, where a formula holds for them, for lengths that the ranks do not divide.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/attention/schedule_cases.hpp"

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
  problem.dtype = type;
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

/// BurstEngine §3.1: (G−1)/G of 2Nd forward, of 4Nd backward (ring) or 3Nd + 2N for each head (Burst). A rank
/// passes on every shard but that of its successor and receives every shard but its own; of the gradients it
/// passes on all but its own, which it receives instead of its predecessor's. Rings of rings do the same with
/// shards of equal length.
TEST(PublishedCounts, RingsPerRank) {
  for_cases([](int ranks, const Heads& heads) {
    for (const std::string& layout : test::layouts) {
      for (const std::int64_t n : {24 * ranks, 24 * ranks + 5}) {
        Problem problem = full(ranks, n, heads);
        problem.layout = Layout::parse(layout);
        const Row row(problem);
        for (int rank = 0; rank < ranks; ++rank) {
          const std::int64_t own = test::rows(problem, rank);
          const std::int64_t out = n - test::rows(problem, rank, 1),
                             gradient_in = n - test::rows(problem, rank, -1);
          Expected forward, burst;
          for (const Tensor t : {Tensor::k, Tensor::v}) forward.set(t, out * row.kv, (n - own) * row.kv);
          Expected ring = forward;
          for (const Tensor t : {Tensor::dk, Tensor::dv})
            ring.set(t, (n - own) * row.kv, gradient_in * row.kv);
          for (const Tensor t : {Tensor::q, Tensor::d_o}) burst.set(t, out * row.q, (n - own) * row.q);
          for (const Tensor t : {Tensor::lse, Tensor::d})
            burst.set(t, out * row.number, (n - own) * row.number);
          burst.set(Tensor::dq, (n - own) * row.q, gradient_in * row.q);
          for (const char* schedule : {"ring", "burst", "topology-burst", "hierarchical", "double-ring"}) {
            const std::string_view name = schedule;
            const bool of_rings = name != "ring" && name != "burst";
            if (of_rings && (n % ranks != 0 || annulus::test::documented_refusal(schedule, problem)))
              continue;
            SCOPED_TRACE(schedule);
            test::expect_traffic(make_plan(schedule, problem, Pass::forward), rank, forward);
            test::expect_traffic(make_plan(schedule, problem, Pass::backward), rank,
                                 name.ends_with("burst") ? burst : ring);
          }
        }
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
        for (const Step& step : rank_steps(plan, rank)) {
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
    Problem problem = full(ranks, n, heads);
    const std::int64_t kv = Row(problem).kv;
    for (int i = 0; i < ranks * std::ssize(test::layouts); ++i) {
      const int rank = i % ranks;
      problem.layout = Layout::parse(test::layouts[static_cast<std::size_t>(i / ranks)]);
      const std::int64_t own = test::rows(problem, rank), out = (ranks - 1) * own * kv, in = (n - own) * kv;
      Expected expected;
      for (const Tensor t : {Tensor::k, Tensor::v}) expected.set(t, out, in);
      test::expect_traffic(make_all_gather(problem, Pass::forward), rank, expected);
      for (const Tensor t : {Tensor::dk, Tensor::dv}) expected.set(t, in, out);
      test::expect_traffic(make_all_gather(problem, Pass::backward), rank, expected);
    }
  });
}

/// With c rows a rank, b sequences, and H and C dividing everything: in the exchange of heads each rank keeps
/// 1/H of its own rows; the ring carries all rows of a group for 1/H of the K/V heads, C − 1 times.
TEST(PublishedCounts, HybridsPerRank) {
  for (const auto& [h, c] : {std::pair{2, 3}, {4, 2}, {4, 1}, {1, 4}, {2, 1}}) {
    const std::int64_t rows = 12;
    const Problem problem = test::make_problem(h * c, rows * h * c, "striped", "full", 8, 4);
    const std::string name = fmt::format("hybrid:{}x{}", h, c);
    const std::int64_t row = rows * problem.batch * problem.heads, q = row * problem.head_dim;
    const std::int64_t kv = rows * problem.batch * problem.kv_heads * problem.head_dim;
    const auto exchanged = [&](std::int64_t elements) { return elements * (h - 1) / h; };
    for (int rank = 0; rank < h * c; ++rank) {
      SCOPED_TRACE(testing::Message() << name << ", rank " << rank);
      const Traffic forward = traffic(make_plan(name, problem, Pass::forward), rank);
      const Traffic backward = traffic(make_plan(name, problem, Pass::backward), rank);
      const auto expect = [](const Traffic& found, Tensor tensor, std::int64_t elements) {
        EXPECT_EQ(found.sent[static_cast<int>(tensor)], elements) << name_of(tensor);
        EXPECT_EQ(found.received[static_cast<int>(tensor)], elements) << name_of(tensor);
      };
      const std::int64_t ring = (c - 1) * kv;  // c·H rows, kv_heads/H heads
      for (const Tensor t : {Tensor::k, Tensor::v}) {
        expect(forward, t, exchanged(kv) + ring);
        expect(backward, t, exchanged(kv) + ring);
      }
      expect(forward, Tensor::q, exchanged(q));
      expect(forward, Tensor::o, exchanged(q));
      expect(forward, Tensor::lse, exchanged(row));
      for (const Tensor t : {Tensor::q, Tensor::d_o, Tensor::dq}) expect(backward, t, exchanged(q));
      for (const Tensor t : {Tensor::lse, Tensor::d}) expect(backward, t, exchanged(row));
      for (const Tensor t : {Tensor::dk, Tensor::dv}) expect(backward, t, exchanged(kv) + ring);
    }
  }
}

/// A rank gets, of all rows but its own, the query heads and K/V heads that it computes with, of its own rows
/// it sends those of the others; K/V heads that several ranks need, several times.
TEST(PublishedCounts, AllToAllPerRank) {
  for (const auto& [ranks, heads, kv_heads] :
       {std::tuple{3, 6, 3}, {4, 8, 2}, {6, 8, 4}, {5, 7, 1}, {8, 8, 8}, {2, 8, 4}, {8, 8, 1}, {8, 16, 4}}) {
    const std::int64_t n = 61;
    const Problem problem = test::make_problem(ranks, n, "zigzag", "full", heads, kv_heads);
    const int group = heads / kv_heads;
    const auto first = [&](int rank) { return heads * rank / ranks; };
    const auto kv_of = [&](int rank) { return (first(rank + 1) - 1) / group + 1 - first(rank) / group; };
    int copies = 0;  // of K/V heads, on all ranks
    for (int rank = 0; rank < ranks; ++rank) copies += kv_of(rank);
    const Plan forward = make_ulysses(problem, Pass::forward),
               backward = make_ulysses(problem, Pass::backward);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t own = problem.shard(rank).count, others = n - own;
      const std::int64_t b = problem.batch, d = problem.head_dim, mine = first(rank + 1) - first(rank);
      const std::int64_t q_in = others * mine * b, q_out = own * (heads - mine) * b;
      const std::int64_t kv_in = others * kv_of(rank) * b * d, kv_out = own * (copies - kv_of(rank)) * b * d;
      test::Expected there;
      there.set(Tensor::q, q_out * d, q_in * d);
      for (const Tensor t : {Tensor::k, Tensor::v}) there.set(t, kv_out, kv_in);
      test::Expected back = there;
      there.set(Tensor::o, q_in * d, q_out * d);
      there.set(Tensor::lse, q_in, q_out);
      test::expect_traffic(forward, rank, there);
      back.set(Tensor::d_o, q_out * d, q_in * d);
      for (const Tensor t : {Tensor::lse, Tensor::d}) back.set(t, q_out, q_in);
      back.set(Tensor::dq, q_in * d, q_out * d);
      for (const Tensor t : {Tensor::dk, Tensor::dv}) back.set(t, kv_in, kv_out);
      test::expect_traffic(backward, rank, back);
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
      sent_forward += total_sent(traffic(forward, rank));
      sent_backward += total_sent(traffic(backward, rank));
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

/// Rows of the shards of one rail.
std::int64_t rail_rows(const Problem& problem, int local) {
  std::int64_t rows = 0;
  for (int node = 0; node < problem.topology.nodes(); ++node) {
    rows += problem.shard(problem.topology.first_rank(node) + local).count;
  }
  return rows;
}

/// Bytes of one row of all tensors that travel, and of all sums.
struct Widths {
  std::int64_t inputs = 0, sums = 0;
};
Widths widths(const Problem& problem, bool queries, Pass pass) {
  const std::int64_t stored = static_cast<std::int64_t>(size_of(problem.dtype)), d = problem.head_dim;
  const std::int64_t batch = problem.batch;
  if (!queries || pass == Pass::forward) {
    const std::int64_t kv = batch * problem.kv_heads * d;
    return {2 * kv * stored, pass == Pass::backward ? 2 * kv * 4 : 0};
  }
  const std::int64_t heads = batch * problem.heads;
  return {2 * heads * d * stored + 2 * heads * 4, heads * d * 4};
}

/// On its inner ring a rank passes on, in every loop, all shards but those of its successor's rail; between
/// the nodes, the shards of its own rail but that of the next node. Of the sums it sends all of its own rail
/// but its own between nodes, all other rails inside. With equal shards on I nodes of J ranks, (J−1)·I of the
/// G − 1 hops of a shard are inside nodes and I − 1 between them.
TEST(PublishedCounts, NodeRingsInsideAndBetweenNodes) {
  for (const auto& [nodes, size] :
       {std::pair{2, 2}, {2, 4}, {3, 3}, {4, 2}, {4, 4}, {8, 2}, {2, 1}, {1, 4}}) {
    for (const Heads& heads : groupings) {
      for (const DType type : {DType::f32, DType::bf16}) {
        for (const std::string& layout : test::layouts) {
          const int ranks = nodes * size;
          const std::int64_t n = 61;
          Problem problem = full(ranks, n, heads, type);
          problem.topology = Topology::uniform(ranks, size);
          problem.layout = Layout::parse(layout);
          for (const std::string& name : test::node_rings) {
            for (const Pass pass : test::passes) {
              SCOPED_TRACE(test::case_text(name, problem) + " " + std::string(name_of(pass)));
              const Widths bytes = widths(problem, name == "topology-burst", pass);
              const Plan plan = make_plan(name, problem, pass);
              for (int rank = 0; rank < ranks; ++rank) {
                const int local = problem.topology.local_rank(rank);
                const std::int64_t own_rail = rail_rows(problem, local);
                const std::int64_t inside =
                    (n - rail_rows(problem, (local + 1) % size)) * bytes.inputs + (n - own_rail) * bytes.sums;
                const std::int64_t between = (own_rail - test::rows(problem, rank, size)) * bytes.inputs +
                                             (own_rail - test::rows(problem, rank)) * bytes.sums;
                const Traffic found = traffic(plan, rank);
                EXPECT_EQ(found.sent_bytes_inter_node, between);
                EXPECT_EQ(found.sent_bytes - found.sent_bytes_inter_node, inside);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace annulus::plan
