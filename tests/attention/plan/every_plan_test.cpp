// Every builder through the validator: all schedules with all their arguments, on every number of ranks up to
// 64 and up to 8 nodes, which are uneven where the nodes do not divide the ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
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

using annulus::test::balanced;
using annulus::test::documented_refusal;
using annulus::test::schedules_on;
using test::BlockFile;

/// What shards look like: layout, mask and length.
struct Sequence {
  std::string layout, mask;
  std::int64_t tokens;
};

/// Each mask, layout and kind of length; which of them meet is left to chance, but always the same chance.
class Sequences {
 public:
  Sequence next() {
    const std::int64_t tokens = pick(std::vector<std::int64_t>{30, 131, 192, 401});
    std::vector<std::string> masks = test::masks_of(tokens);
    masks.push_back(fmt::format("window:{},3", tokens / 5));
    masks.push_back(fmt::format("causal+{}", blocks_.mask((tokens + 7) / 8)));
    masks.push_back(blocks_.mask((tokens + 7) / 8));
    const std::string mask = pick(masks);
    return {pick(test::layouts_of(mask)), mask, tokens};
  }
  /// Query and K/V heads.
  std::pair<int, int> heads() {
    return pick(std::vector<std::pair<int, int>>{{4, 2}, {8, 8}, {70, 10}, {64, 1}});
  }

 private:
  template <class T>
  T pick(const std::vector<T>& of) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return of[(state_ >> 33) % of.size()];
  }
  std::uint64_t state_ = 1;
  BlockFile blocks_{test::block_rows};
};

/// `rounds` sequences for each schedule; on every number of nodes for those whose plans depend on nodes.
void check_all(int ranks, int rounds, Sequences& sequences) {
  for (const std::string& schedule : schedules_on(ranks)) {
    const bool by_nodes =
        schedule == "topology-burst" || schedule == "hierarchical" || schedule == "double-ring";
    const int most_nodes = std::min(8, ranks);
    for (int nodes = by_nodes ? 1 : most_nodes; nodes <= most_nodes; ++nodes) {
      int served = 0;
      for (int draw = 0; served < rounds && draw < 20 * rounds; ++draw) {
        const Sequence sequence = sequences.next();
        const auto [heads, kv_heads] = sequences.heads();
        Problem problem =
            test::make_problem(ranks, sequence.tokens, sequence.layout, sequence.mask, heads, kv_heads);
        problem.topology = balanced(ranks, nodes);
        served += test::check(schedule, problem) ? 1 : 0;
        if (testing::Test::HasFailure() || (by_nodes && served == 0))
          break;  // these are refused on uneven nodes
      }
      if (testing::Test::HasFailure()) return;
      EXPECT_TRUE(served == rounds || (by_nodes && served == 0)) << schedule << " on " << ranks << " ranks";
    }
  }
}

TEST(EveryPlan, CasesCoverEverySchedule) {
  for (const std::string& known : schedule_names()) {
    const std::string name = known.substr(0, known.find(':'));
    EXPECT_TRUE(std::ranges::any_of(
        schedules_on(4),
        [&](const std::string& case_of) { return case_of.substr(0, case_of.find(':')) == name; }))
        << known << " is in no cross: add it to schedules_on";
  }
}

/// All schedules with all their arguments.
void check_schedules(const Problem& problem) {
  for (const std::string& schedule : schedules_on(problem.ranks())) {
    test::check(schedule, problem);
    if (testing::Test::HasFailure()) return;
  }
}

// More ranks than documents or tokens, documents of one token, lengths that nothing divides, windows that are
// longer than documents.
TEST(EveryPlan, BalancedCutsOfOddSequences) {
  std::string ones = "documents:0";
  for (int start = 1; start < 23; ++start) ones += fmt::format(",{}", start);
  const struct {
    int ranks;
    std::int64_t tokens;
    std::string mask;
  } cases[] = {{7, 97, "documents:0,50"},     {5, 23, ones},
               {4, 23, ones + "+window:3,0"}, {6, 131, "documents:0,13,14,115,122,123+window:200,0"},
               {5, 3, "documents:0,2"},       {3, 1, "causal"}};
  for (const auto& [ranks, tokens, mask] : cases) {
    check_schedules(test::make_problem(ranks, tokens, "balanced", mask, 4, 2));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(EveryPlan, IsValidForEveryLayoutMaskAndLength) {
  const BlockFile blocks(test::block_rows);
  const std::vector<std::int64_t> many = {1, 5, 37, 64}, few = {3, 37};
  for (const auto& [nodes, size] : {std::pair{1, 1},
                                    {1, 2},
                                    {2, 1},
                                    {1, 3},
                                    {2, 2},
                                    {1, 5},
                                    {2, 3},
                                    {3, 2},
                                    {7, 1},
                                    {4, 2},
                                    {5, 2},
                                    {3, 4}}) {
    for (const std::int64_t tokens : nodes* size <= 4 ? many : few) {
      std::vector<std::string> masks = test::masks_of(tokens);
      if (tokens == 37) masks.insert(masks.end(), {blocks.mask(5), "causal+" + blocks.mask(5)});
      for (const std::string& mask : masks) {
        for (const std::string& layout : test::layouts_of(mask)) {
          Problem problem = test::on_nodes(nodes, size, tokens, layout, mask);
          problem.heads = 12;
          problem.kv_heads = 3;
          check_schedules(problem);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(EveryPlan, IsValidForEveryGroupingOfHeads) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const auto& [heads, kv_heads] : {std::pair{8, 8},
                                          {8, 4},
                                          {8, 2},
                                          {8, 1},
                                          {7, 7},
                                          {7, 1},
                                          {12, 4},
                                          {9, 3},
                                          {11, 1},
                                          {6, 6},
                                          {6, 2}}) {
      for (const char* layout : {"zigzag", "contiguous"})
        check_schedules(test::make_problem(ranks, 31, layout, "causal", heads, kv_heads));
    }
  }
}

TEST(EveryPlan, IsValidOnManyRanks) {
  for (const auto& [ranks, tokens, mask] : {std::tuple{16, 129, "causal"},
                                            {23, 90, "dilated:4,7"},
                                            {33, 40, "window:9,9"},  // ranks without rows
                                            {35, 61, "window:9,3"},  // ranks with a row or two
                                            {64, 1000, "documents:0,100,401,402"}}) {
    for (const std::string& layout : test::all_layouts)
      check_schedules(test::make_problem(ranks, tokens, layout, mask));
  }
}

TEST(EveryPlan, DoesNothingWhenTheMaskIsEmpty) {
  const BlockFile file({"", ""});
  const Problem problem = test::make_problem(4, 10, "contiguous", file.mask(5));
  for (const std::string& name : schedules_on(4)) {
    if (documented_refusal(name, problem)) continue;
    for (const Pass pass : test::passes) {
      const Plan plan = make_plan(name, problem, pass);
      EXPECT_EQ(plan.steps, 0) << name;
      EXPECT_THAT(violations(plan), testing::IsEmpty()) << name;
    }
  }
}

TEST(EveryPlan, OfOneRankMovesNothing) {
  for (const std::string& name : schedules_on(1)) {
    for (const Pass pass : test::passes) {
      const Plan plan = make_plan(name, test::make_problem(1, 17, "zigzag", "causal"), pass);
      EXPECT_EQ(plan.steps, 1) << name;
      EXPECT_EQ(total_sent(traffic(plan, 0)), 0) << name;
    }
  }
}

TEST(EveryPlan, IsValidOnSomeRanksAndNodes) {
  Sequences sequences;
  for (const int ranks : {1, 2, 3, 4, 7, 12}) check_all(ranks, 3, sequences);
}

TEST(EveryPlan, IsValidOnAllRanksUpTo64AndUpTo8NodesSlow) {
  Sequences sequences;
  for (int ranks = 1; ranks <= 64; ++ranks) {
    check_all(ranks, ranks <= 12 ? 40 : ranks <= 24 ? 12 : ranks <= 32 ? 6 : 3, sequences);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace annulus::plan
