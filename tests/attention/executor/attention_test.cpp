// Schedules against the double-precision reference, ranks as threads of this process. cross_test.cpp has all
// cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/block_mask.hpp"

namespace annulus::test {
namespace {

using Texts = std::vector<std::string>;

const Texts masks = {"full", "causal", "window:20,7", "dilated:6,5", "documents:0,5,31,32,45"};
const Texts causal_masks = {"causal", "window:9,0", "dilated:6,5", "documents:0,5,31,32,45",
                            "causal+window:25,3"};
const Texts layouts = {"contiguous", "zigzag", "striped", "block-striped:3"};
const Texts all_layouts = {"contiguous", "zigzag", "striped", "block-striped:3", "balanced"};
const Texts rings = {"ring", "burst"};
const Texts exchanges = {"all-gather", "helper-worker", "ulysses", "hybrid:2x2"};

/// Schedules on `count` ranks, of which `on_node` share a node.
struct Ranks {
  int count, on_node;
  Texts schedules;
};

/// Runs all combinations.
void check(const std::vector<Ranks>& all_ranks, const Texts& of_masks, const Texts& of_layouts,
           const Shape& shape = {.tokens = 61}, DType type = DType::f32) {
  for (const std::string& mask : of_masks) {
    const auto sample = make_sample(mask, shape, type);
    for (const auto& [count, on_node, schedules] : all_ranks) {
      const Topology topology = Topology::uniform(count, on_node);
      for (const std::string& layout : of_layouts) {
        comm::run_loopback(topology, [&](comm::Communicator& communicator) {
          for (const std::string& schedule : schedules)
            expect_correct(run(communicator, *sample, schedule, Layout::parse(layout)),
                           fmt::format("{} {} {} {} of {} tokens, {}/{} heads, batch {} on {}", schedule,
                                       layout, mask, name_of(type), shape.tokens, shape.heads, shape.kv_heads,
                                       shape.batch, topology.to_string()));
        });
      }
    }
  }
}

// Every layout and mask on one awkward number of ranks; lengths that nothing divides; GQA.
TEST(DistributedAttention, Rings) {
  check({{3, 3, rings}}, masks, all_layouts);
  // Blocks of 8 tokens: the diagonal, the first column, and one row that lists nothing.
  const TemporaryFolder folder;
  const std::string blocks = block_mask(folder, "blocks", 61, 8, [](std::int64_t row, std::int64_t column) {
    return row != 2 && (column == 0 || column == row);
  });
  check({{3, 3, rings}}, {blocks, "documents:0,40,41+window:9,0"}, layouts);
}

// Rings between emulated nodes and inside them. A window of two ranks need not be a node.
TEST(DistributedAttention, RingsBetweenAndInsideNodes) {
  const Texts three = {"topology-burst", "hierarchical", "double-ring"},
              four = {"topology-burst", "hierarchical", "double-ring", "double-ring:2"};
  check({{4, 2, four}, {3, 1, three}, {8, 2, four}}, {"full"}, {"striped"});
  check({{6, 2, four}, {6, 3, four}}, {"causal", "window:20,7"}, {"contiguous", "zigzag"});
  check({{8, 4, four}}, {"documents:0,5,31,32,45"}, {"contiguous", "balanced"}, {.tokens = 61, .batch = 2},
        DType::bf16);
  check({{9, 3, three}}, {"causal"}, {"block-striped:3"}, {.tokens = 7});  // ranks without rows
}

TEST(DistributedAttention, Exchanges) {
  check({{2, 2, {"all-gather"}}, {5, 2, {"all-gather"}}}, masks, {"contiguous", "zigzag", "balanced"});
  check({{2, 2, {"helper-worker"}},
         {3, 2, {"helper-worker"}},
         {4, 2, {"helper-worker"}},
         {7, 2, {"helper-worker"}}},
        causal_masks, {"contiguous"});
  check({{2, 2, {"ulysses"}}, {3, 2, {"ulysses"}}, {4, 2, {"ulysses"}}}, masks,
        {"contiguous", "striped", "balanced"});
  check({{4, 2, {"hybrid:2x2", "hybrid:2x2:context-first"}}, {6, 2, {"hybrid:2x3"}}}, masks,
        {"zigzag", "striped", "balanced"});
}

TEST(DistributedAttention, HeadsThatTheRanksDoNotDivide) {
  check({{3, 2, {"ulysses"}}, {4, 2, {"hybrid:4x1", "hybrid:2x2"}}}, {"causal"}, {"zigzag"},
        {.tokens = 45, .heads = 10, .kv_heads = 5, .head_dim = 24, .batch = 2});
  check({{4, 2, {"ulysses"}}}, {"causal"}, {"zigzag"}, {.tokens = 45, .heads = 6, .kv_heads = 1});
}

TEST(DistributedAttention, SixteenBitTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    check({{4, 4, rings}}, {"causal"}, {"zigzag"}, {.tokens = 61}, type);
    check({{4, 2, exchanges}}, {"causal"}, {"contiguous"}, {.tokens = 61}, type);
  }
}

TEST(DistributedAttention, AnyNumberOfRanks) {
  check({{1, 2, rings}, {2, 2, rings}, {5, 2, rings}, {8, 2, rings}}, {"causal"}, {"striped"},
        {.tokens = 97});
}

TEST(DistributedAttention, BatchesAndHeadGroups) {
  for (const Shape& shape : {Shape{.tokens = 45, .heads = 4, .kv_heads = 2, .head_dim = 24, .batch = 2},
                             Shape{.tokens = 45, .heads = 3, .kv_heads = 3, .head_dim = 16, .batch = 3},
                             Shape{.tokens = 45, .heads = 5, .kv_heads = 1, .head_dim = 40, .batch = 1}})
    check({{3, 3, rings}}, {"window:11,3"}, {"block-striped:3"}, shape);
}

TEST(DistributedAttention, RanksThatOwnNothing) {
  for (const std::int64_t tokens : {1, 3}) {
    check({{5, 5, rings}}, {"causal"}, all_layouts, {.tokens = tokens});
    check({{4, 2, exchanges}}, {"causal"}, {"contiguous"}, {.tokens = tokens});
  }
}

TEST(DistributedAttention, NullCommunicatorIsOneRank) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto communicator = comm::make_null();
  expect_correct(run(*communicator, *sample, "ring", Layout::parse("zigzag")), "null communicator");
}

TEST(DistributedAttention, TheSameBitsAgain) {
  const auto sample = make_sample("causal", {.tokens = 61});
  for (const std::string& schedule : rings) {
    comm::run_loopback(Topology::uniform(4, 4), [&](comm::Communicator& communicator) {
      const auto problem = sample->problem(communicator.topology(), Layout::parse("striped"));
      run(communicator, *sample, plan::make_plan(schedule, problem, plan::Pass::forward),
          plan::make_plan(schedule, problem, plan::Pass::backward), Again::all);
    });
  }
}

// Other documents, then a longer sequence: buffers grow; then the first again.
TEST(DistributedAttention, TakesOtherPlans) {
  const std::shared_ptr<const Sample> samples[] = {
      make_sample("documents:0,9,30", {.tokens = 61}), make_sample("documents:0,33", {.tokens = 61}),
      make_sample("causal", {.tokens = 120}), make_sample("documents:0,9,30", {.tokens = 61})};
  comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    const auto plan_of = [&](const Sample& sample, plan::Pass pass) {
      return plan::make_ring(sample.problem(communicator.topology(), Layout()), pass);
    };
    executor::Attention<TestExec, float> attention(exec, communicator,
                                                   plan_of(*samples[0], plan::Pass::forward),
                                                   plan_of(*samples[0], plan::Pass::backward));
    for (const auto& sample : samples) {
      attention.set_plans(exec, plan_of(*sample, plan::Pass::forward),
                          plan_of(*sample, plan::Pass::backward));
      const PositionMap positions = Layout().shard(sample->mask.tokens(), 3, communicator.rank());
      expect_correct(run(communicator, *sample, attention, positions), sample->mask.to_string());
    }
    const auto times = attention.times();
    EXPECT_GT(times.computing, 0.0);
    EXPECT_GE(times.exposed_communication, 0.0);
    attention.reset_times();
    EXPECT_EQ(attention.times().computing, 0.0);
  });
}

}  // namespace
}  // namespace annulus::test
