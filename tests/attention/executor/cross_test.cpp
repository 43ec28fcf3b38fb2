// The cross of the schedules: every one, on every number of ranks and nodes, layout, mask, grouping of heads
// and type, against the double-precision reference and against one rank. Ranks are threads of this process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/block_mask.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

const std::vector<int> rank_counts = {1, 2, 3, 4, 5, 6, 8};
/// `balanced` takes no block list.
std::vector<std::string> layouts_of(const std::string& mask) {
  std::vector<std::string> layouts = {"contiguous", "zigzag", "striped", "block-striped:3"};
  if (mask.find("blocks") == mask.npos) layouts.emplace_back("balanced");
  return layouts;
}

struct Heads {
  int query, key, head_dim;
};
const std::vector<Heads> groupings = {{8, 8, 16}, {9, 3, 24}, {8, 1, 40}};  // MHA, GQA, MQA

/// Blocks of 8 tokens: the first column, the diagonal, one far behind it, and one row that lists nothing.
std::string blocks(std::int64_t tokens) {
  static const TemporaryFolder folder;
  return block_mask(folder, fmt::format("{}", tokens), tokens, 8, [](std::int64_t row, std::int64_t column) {
    return row != 2 && (column == 0 || column == row || (row == 3 && column == 5));
  });
}

std::vector<std::string> masks_of(std::int64_t tokens) {
  if (tokens < 32) {  // fewer tokens than ranks, or hardly more
    return {"full",         "causal",           "window:2,1", "dilated:3,2", "documents:0,1,3",
            blocks(tokens), "causal+window:3,2"};
  }
  return {"full",
          "causal",
          "window:20,7",
          "dilated:6,5",
          "documents:0,5,31,32,45",
          blocks(tokens),
          "causal+window:25,3",
          "documents:0,40,41+window:9,0",
          "causal+" + blocks(tokens)};
}

/// What a cross has done. Cases whose plans are, step by step, those of a topology that has been run count as
/// the same: only the nodes of the ranks differ, of which the executor knows nothing.
struct Counts {
  std::int64_t run = 0, same = 0;
  std::map<std::string, std::int64_t> refused;  // by reason

  std::int64_t all() const {
    std::int64_t sum = run + same;
    for (const auto& [reason, count] : refused) sum += count;
    return sum;
  }
};

class Cross {
 public:
  /// Takes every `stride`-th case.
  explicit Cross(std::int64_t stride = 1) : stride_(stride) {}

  /// All schedules on all nodes.
  void run(int ranks, const std::string& layout, const Sample& sample) {
    std::map<std::string, std::vector<executor::Plans>> done;
    for (int nodes = 1; nodes <= std::min(4, ranks); ++nodes) {
      const Topology topology = balanced(ranks, nodes);
      std::vector<executor::Plans> todo;
      for (const std::string& schedule : schedules_on(ranks)) {
        if (number_++ % stride_ != 0) continue;
        const plan::Problem problem = sample.problem(topology, Layout::parse(layout));
        if (refused(schedule, problem)) continue;
        executor::Plans plans = plans_of(schedule, problem);
        auto& earlier = done[schedule];
        const auto same = [&](const executor::Plans& other) {
          return other.forward == plans.forward && other.backward == plans.backward;
        };
        if (std::ranges::any_of(earlier, same)) {
          ++counts_.same;
          continue;
        }
        earlier.push_back(plans);
        todo.push_back(std::move(plans));
      }
      run(topology, todo, sample);
    }
  }

  const Counts& counts() const { return counts_; }

 private:
  /// Refusals are those of docs/schedules.md, no more and no fewer.
  bool refused(const std::string& schedule, const plan::Problem& problem) {
    const auto reason = documented_refusal(schedule, problem);
    if (!reason) return false;
    for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
      EXPECT_THAT(error_text([&] { plan::make_plan(schedule, problem, pass); }), testing::HasSubstr(*reason));
    }
    ++counts_.refused[*reason];
    return true;
  }

  void run(const Topology& topology, const std::vector<executor::Plans>& todo, const Sample& sample) {
    if (todo.empty()) return;
    comm::run_loopback(topology, [&](comm::Communicator& communicator) {
      for (const executor::Plans& plans : todo) {
        const Errors errors = test::run(communicator, sample, plans.forward, *plans.backward, Again::forward);
        if (communicator.rank() > 0) continue;  // the same on every rank
        expect_correct(errors, fmt::format("{} {} {} {} tokens {}/{} heads {} on {}", plans.forward.schedule,
                                           plans.forward.problem.layout.to_string(), sample.mask.to_string(),
                                           sample.mask.tokens(), sample.shape.heads, sample.shape.kv_heads,
                                           name_of(sample.type), topology.to_string()));
      }
    });
    counts_.run += std::ssize(todo);
  }

  std::int64_t stride_, number_ = 0;
  Counts counts_;
};

void report(const Counts& counts) {
  std::string text = fmt::format("{} run, {} the same on other nodes", counts.run, counts.same);
  for (const auto& [reason, count] : counts.refused) text += fmt::format(", {} refused ({})", count, reason);
  fmt::print("{}\n", text);
}

void cross_all(Cross& cross, int ranks, const Heads& heads, DType type, std::int64_t tokens) {
  for (const std::string& mask : masks_of(tokens)) {
    const Shape shape{.tokens = tokens,
                      .heads = heads.query,
                      .kv_heads = heads.key,
                      .head_dim = heads.head_dim,
                      .batch = tokens < 32 ? 2 : 1};
    const auto sample = make_sample(mask, shape, type);
    for (const std::string& layout : layouts_of(mask)) cross.run(ranks, layout, *sample);
  }
}

class DistributedCross : public testing::TestWithParam<std::tuple<int, std::size_t, DType>> {};

TEST_P(DistributedCross, EqualsTheReferenceAndOneRank) {
  const auto& [ranks, grouping, type] = GetParam();
  Cross cross;
  std::size_t cases = 0;
  for (const std::int64_t tokens : {61, 7}) {
    cross_all(cross, ranks, groupings[grouping], type, tokens);
    for (const std::string& mask : masks_of(tokens))
      cases +=
          layouts_of(mask).size() * schedules_on(ranks).size() * static_cast<std::size_t>(std::min(4, ranks));
  }
  report(cross.counts());
  EXPECT_EQ(static_cast<std::size_t>(cross.counts().all()), cases);
}

std::string name_of_part(const testing::TestParamInfo<std::tuple<int, std::size_t, DType>>& info) {
  const auto& [ranks, grouping, type] = info.param;
  const Heads& heads = groupings[grouping];
  return fmt::format("{}Ranks{}Heads{}Of{}", ranks, heads.query, heads.key, name_of(type));
}

INSTANTIATE_TEST_SUITE_P(Slow, DistributedCross,
                         testing::Combine(testing::ValuesIn(rank_counts), testing::Range<std::size_t>(0, 3),
                                          testing::Values(DType::f32, DType::bf16)),
                         name_of_part);

/// A sample of the cross for every day.
TEST(DistributedCrossSample, EqualsTheReferenceAndOneRank) {
  Cross cross(151);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const Heads& heads : groupings) {
      for (const int ranks : rank_counts) {
        for (const std::int64_t tokens : {61, 7}) cross_all(cross, ranks, heads, type, tokens);
      }
    }
  }
  report(cross.counts());
  EXPECT_GT(cross.counts().run, 100);
}

TEST(DistributedCrossSample, OneTokenAndThreeOnFiveRanks) {
  Cross cross;
  for (const std::int64_t tokens : {1, 3})
    for (const std::string& layout : layouts_of("causal"))
      cross.run(5, layout, *make_sample("causal", {.tokens = tokens, .heads = 8}));
  EXPECT_GT(cross.counts().run, 100);
}

}  // namespace
}  // namespace annulus::test
