// Every builder through the validator: all schedules with all their arguments, on every number of ranks up to
// 64 and up to 8 nodes, which are uneven where the nodes do not divide the ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/plan/schedules.hpp>

#include "plan/check_plan.hpp"
#include "support/error_text.hpp"
#include "support/schedule_cases.hpp"

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
    return {pick(test::layouts), pick(masks), tokens};
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
  BlockFile blocks_{{"0-1 5", "", "2 4-5", "0 3", "1 7", "5", "0-7", "3 7"}};
};

struct Counts {
  int valid = 0, refused = 0;
};

/// Both passes, which must be refused as documented, or valid. Returns whether they were served.
bool check(const std::string& schedule, const Problem& problem, Counts& counts) {
  const auto reason = documented_refusal(schedule, problem);
  for (const Pass pass : test::passes) {
    SCOPED_TRACE(testing::Message() << schedule << " " << name_of(pass) << ", " << problem.layout.to_string()
                                    << ", " << problem.mask.to_string() << ", " << problem.mask.tokens()
                                    << " tokens, " << problem.heads << " heads (" << problem.kv_heads
                                    << " kv) on " << problem.topology.to_string());
    if (reason) {
      EXPECT_THAT(error_text([&] { make_plan(schedule, problem, pass); }), testing::HasSubstr(*reason));
      ++counts.refused;
    } else {
      test::check_plan(make_plan(schedule, problem, pass));
      ++counts.valid;
    }
  }
  return !reason;
}

/// `rounds` sequences for each schedule; on every number of nodes for those whose plans depend on nodes.
void check_all(int ranks, int rounds, Sequences& sequences, Counts& counts) {
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
        served += check(schedule, problem, counts) ? 1 : 0;
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

TEST(EveryPlan, IsValidOnSomeRanksAndNodes) {
  Sequences sequences;
  Counts counts;
  for (const int ranks : {1, 2, 3, 4, 7, 12}) check_all(ranks, 3, sequences, counts);
  fmt::print("{} plans valid, {} refused\n", counts.valid, counts.refused);
}

TEST(EveryPlan, IsValidOnAllRanksUpTo64AndUpTo8NodesSlow) {
  Sequences sequences;
  Counts counts;
  for (int ranks = 1; ranks <= 64; ++ranks) {
    check_all(ranks, ranks <= 12 ? 40 : ranks <= 24 ? 12 : ranks <= 32 ? 6 : 3, sequences, counts);
    if (HasFailure()) return;
  }
  fmt::print("{} plans valid, {} refused\n", counts.valid, counts.refused);
}

}  // namespace
}  // namespace annulus::plan
