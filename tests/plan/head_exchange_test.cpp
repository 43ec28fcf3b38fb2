#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>

#include "plan/check_plan.hpp"
#include "support/error_text.hpp"

/// Ulysses and hybrids.
namespace annulus::plan {
namespace {

using test::check_plan;
using test::make_problem;
using testing::HasSubstr;
using testing::IsEmpty;

void check(const std::string& schedule, const Problem& problem) {
  for (const Pass pass : test::passes) {
    SCOPED_TRACE(testing::Message() << schedule << " " << name_of(pass) << ", " << problem.layout.to_string()
                                    << ", " << problem.mask.to_string() << ", " << problem.mask.tokens()
                                    << " tokens, " << problem.heads << " heads (" << problem.kv_heads
                                    << " kv) on " << problem.ranks() << " ranks");
    check_plan(make_plan(schedule, problem, pass));
  }
}

std::vector<std::string> hybrids_of(int ranks) {
  std::vector<std::string> names;
  for (int heads = 1; heads <= ranks; ++heads) {
    if (ranks % heads != 0) continue;
    names.push_back(fmt::format("hybrid:{}x{}", heads, ranks / heads));
    if (heads > 1 && heads < ranks) names.push_back(names.back() + ":context-first");
  }
  return names;
}

TEST(Ulysses, IsValidForEveryLayoutAndMask) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    for (const std::int64_t tokens : {1, 5, 37}) {
      for (const std::string& layout : test::layouts) {
        for (const std::string& mask : test::masks_of(tokens)) {
          check("ulysses", make_problem(ranks, tokens, layout, mask, 6, 3));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Ulysses, TakesHeadsThatTheRanksDoNotDivide) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (const auto& [heads, kv_heads] :
         {std::pair{8, 8}, {8, 4}, {8, 2}, {8, 1}, {7, 7}, {7, 1}, {12, 4}, {9, 3}}) {
      check("ulysses", make_problem(ranks, 23, "zigzag", "causal", heads, kv_heads));
    }
  }
}

TEST(Hybrid, IsValidForEveryLayoutAndMask) {
  for (const int ranks : {1, 2, 4, 6}) {
    for (const std::string& name : hybrids_of(ranks)) {
      for (const std::int64_t tokens : {3, 37}) {
        for (const std::string& layout : test::layouts) {
          for (const std::string& mask : test::masks_of(tokens)) {
            check(name, make_problem(ranks, tokens, layout, mask, 6, 3));
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  const test::BlockFile file({"0-1 5", "", "2 4-5", "0 3", "1 7", "5", "0-7", "3 7"}), empty({"", ""});
  for (const std::string& name : hybrids_of(8)) {
    check(name, make_problem(8, 45, "contiguous", file.mask(6), 8, 2));
    check(name, make_problem(8, 61, "zigzag", "causal", 11, 1));
    EXPECT_EQ(make_plan(name, make_problem(8, 10, "contiguous", empty.mask(5), 8, 8), Pass::backward).steps,
              0);
  }
}

TEST(Hybrid, CoversTheSequenceByContextGroups) {
  for (const Placement placement : {Placement::head_first, Placement::context_first}) {
    Problem problem = make_problem(6, 61, "zigzag", "causal");
    problem.grid = {3, placement};
    for (int ring_rank = 0; ring_rank < 2; ++ring_rank) {
      const PositionMap group = problem.layout.shard(61, 2, ring_rank);
      std::int64_t row = 0;
      for (int place = 0; place < 3; ++place) {
        const int rank = problem.grid.rank(ring_rank, place, 6);
        EXPECT_EQ(rank, placement == Placement::head_first ? 3 * ring_rank + place : 2 * place + ring_rank);
        EXPECT_EQ(problem.grid.ring_rank(rank, 6), ring_rank);
        EXPECT_EQ(problem.grid.ulysses_rank(rank, 6), place);
        const PositionMap shard = problem.shard(rank);
        EXPECT_NEAR(static_cast<double>(shard.count), static_cast<double>(group.count) / 3, 1);
        for (std::int64_t i = 0; i < shard.count; ++i) EXPECT_EQ(shard(i), group(row++));
      }
      EXPECT_EQ(row, group.count);
    }
  }
}

/// With c rows a rank, b sequences, and H and C dividing everything: in the exchange of heads each rank keeps
/// 1/H of its own rows; the ring carries all rows of a group for 1/H of the K/V heads, C − 1 times.
TEST(Hybrid, MovesExactlyWhatTheFullMaskNeeds) {
  for (const auto& [h, c] : {std::pair{2, 3}, {4, 2}, {4, 1}, {1, 4}, {2, 1}}) {
    const std::int64_t rows = 12;
    const Problem problem = make_problem(h * c, rows * h * c, "striped", "full", 8, 4);
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

/// Of all rows but its own a rank gets the query heads and K/V heads that it computes with, of its own rows
/// it sends those of the others; K/V heads that several ranks need, several times.
TEST(Ulysses, MovesExactlyWhatTheHeadsNeed) {
  for (const auto& [ranks, heads, kv_heads] :
       {std::tuple{3, 6, 3}, {4, 8, 2}, {6, 8, 4}, {5, 7, 1}, {8, 8, 8}}) {
    const std::int64_t n = 61;
    const Problem problem = make_problem(ranks, n, "zigzag", "full", heads, kv_heads);
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

TEST(Hybrid, PlacementDecidesWhatCrossesNodes) {
  // 4 nodes of 2 ranks.
  const Problem problem = make_problem(8, 64, "zigzag", "full", 8, 8);
  const auto between = [&](const char* name) {
    return traffic(make_plan(name, problem, Pass::forward), 0).sent_bytes_inter_node;
  };
  const std::int64_t row = 8 * problem.batch * 4,
                     d = problem.head_dim;                // bytes of a number for each row of a rank
  EXPECT_EQ(between("hybrid:2x4"), 2 * 3 * row * 8 * d);  // the ring
  EXPECT_EQ(between("hybrid:4x2:context-first"), row * 6 * (4 * d + 1));  // the exchange of heads
}

TEST(Hybrid, OneRankAGroupIsTheRing) {
  const Problem problem = make_problem(5, 41, "zigzag", "causal");
  for (const Pass pass : test::passes) {
    Plan hybrid = make_plan("hybrid:1x5", problem, pass);
    EXPECT_EQ(hybrid.schedule, "hybrid:1x5");
    hybrid.schedule = "ring";
    EXPECT_EQ(hybrid, make_ring(problem, pass));
  }
}

TEST(Hybrid, StepsAreThoseOfTheRingAndTheExchange) {
  const Problem problem = make_problem(8, 64, "zigzag", "causal", 8, 8);
  EXPECT_EQ(make_ulysses(problem, Pass::forward).steps, 1 + 8 + 1);
  EXPECT_EQ(make_ulysses(problem, Pass::backward).steps, 1 + 8 + 2);
  EXPECT_EQ(make_plan("hybrid:2x4", problem, Pass::forward).steps, 1 + 3 + 2 + 1);
}

TEST(Hybrid, NamesWhatIsWrongAndWhatToUse) {
  const auto error = [](const char* name, int heads = 4) {
    const Problem problem = make_problem(8, 64, "zigzag", "causal", heads, heads);
    return error_text([&] { make_plan(name, problem, Pass::forward, "--schedule"); });
  };
  EXPECT_EQ(error("hybrid:2x4:head-first"), "no error");
  EXPECT_THAT(error("ulysses"), HasSubstr("4 query heads are too few for the 8 ranks"));
  EXPECT_THAT(error("ulysses"), HasSubstr("use schedule hybrid:4x2"));
  EXPECT_THAT(error("ulysses", 1), HasSubstr("use schedule ring or burst"));
  EXPECT_THAT(error("hybrid:8x1", 3), HasSubstr("use schedule hybrid:2x4"));
  EXPECT_THAT(error("hybrid:2x3"), HasSubstr("--schedule: 'hybrid:2x3' is for 6 ranks, but there are 8"));
  for (const char* name :
       {"hybrid", "hybrid:", "hybrid:8", "hybrid:2x", "hybrid:0x8", "hybrid:2y4", "hybrid:2x4x1"}) {
    EXPECT_THAT(error(name), HasSubstr("write hybrid:HxC")) << name;
  }
  EXPECT_THAT(error("hybrid:2x4:sideways"), HasSubstr("there is no placement 'sideways'"));
  Problem problem = make_problem(8, 64, "zigzag", "causal");
  problem.grid.ulysses_degree = 3;
  EXPECT_THAT(error_text([&] { make_hybrid(problem, Pass::forward); }), HasSubstr("Ulysses groups of 3"));
}

TEST(Hybrid, ArrangesTheProblem) {
  const Problem problem = make_problem(8, 64, "zigzag", "causal");
  EXPECT_EQ(arranged_for("ring", problem).grid, Grid{});
  EXPECT_EQ(arranged_for("hybrid:4x2:context-first", problem).grid, (Grid{4, Placement::context_first}));
  const Plan plan = make_plan("hybrid:4x2:context-first", problem, Pass::forward);
  EXPECT_EQ(plan.problem.grid, (Grid{4, Placement::context_first}));
  EXPECT_EQ(plan.schedule, "hybrid:4x2:context-first");
  EXPECT_THAT(to_string(plan, 0), HasSubstr("in Ulysses groups of 4 (context-first)"));
}

}  // namespace
}  // namespace annulus::plan
