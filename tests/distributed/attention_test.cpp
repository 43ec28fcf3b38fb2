// Rings against the double-precision reference, ranks as threads of this process. cross_test.cpp has all
// schedules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/loopback.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "distributed/attention_case.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::test {
namespace {

const std::vector<std::string> masks = {
    "full", "causal", "window:20,7", "dilated:6,5", "documents:0,5,31,32,45", "documents:0,40,41+window:9,0"};
const std::vector<std::string> layouts = {"contiguous", "zigzag", "striped", "block-striped:3"};
const std::vector<std::string> schedules = {"ring", "burst"};
const std::vector<std::string> node_rings = {"topology-burst", "hierarchical", "double-ring"};

/// Blocks of 8 tokens: the diagonal, the first column, and one row that lists nothing.
Mask blocks(std::int64_t tokens) {
  const TemporaryFolder folder;
  const std::int64_t count = (tokens + 7) / 8;
  std::string text = fmt::format("annulus-block-mask 1\nblocks {}\n", count);
  for (std::int64_t row = 0; row < count; ++row) {
    text += row == 2 ? "2:\n" : row == 0 ? "0: 0\n" : fmt::format("{}: 0 {}\n", row, row);
  }
  return Mask::parse("blocks:8," + folder.write("mask.txt", text + "end\n"), tokens);
}

Errors run_loopback_case(int ranks, const Sample& sample, const std::string& schedule,
                         const std::string& layout, int ranks_per_node = 0) {
  std::mutex mutex;
  Errors errors;
  const Topology topology = Topology::uniform(ranks, ranks_per_node > 0 ? ranks_per_node : ranks);
  comm::run_loopback(topology, [&](comm::Communicator& communicator) {
    const Errors mine = run(communicator, sample, schedule, Layout::parse(layout));
    const std::lock_guard lock(mutex);
    errors = mine;  // the same on every rank
  });
  return errors;
}

void cross(const std::vector<int>& ranks, const std::vector<DType>& types, const Shape& shape) {
  for (const DType type : types) {
    std::vector<std::shared_ptr<const Sample>> samples;
    for (const std::string& mask : masks) samples.push_back(make_sample(mask, shape, type));
    samples.push_back(make_sample(blocks(shape.tokens), shape, type));
    for (const auto& sample : samples) {
      for (const std::string& schedule : schedules) {
        for (const std::string& layout : layouts) {
          for (const int count : ranks) {
            expect_correct(run_loopback_case(count, *sample, schedule, layout),
                           fmt::format("{} {} {} {} on {} ranks", schedule, layout, sample->mask.to_string(),
                                       name_of(type), count));
          }
        }
      }
    }
  }
}

// Every layout, mask and schedule on one awkward number of ranks; lengths that nothing divides; GQA.
TEST(DistributedAttention, EqualsTheReference) {
  cross({3}, {DType::f32}, {.tokens = 61});
}

/// Rings between emulated nodes and inside them. A window of two ranks need not be a node.
void cross_nodes(const std::vector<std::pair<int, int>>& topologies, const std::vector<std::string>& on_masks,
                 const std::vector<std::string>& on_layouts, const Shape& shape, DType type) {
  for (const std::string& mask : on_masks) {
    const auto sample = make_sample(mask, shape, type);
    for (const auto& [nodes, size] : topologies) {
      std::vector<std::string> names = node_rings;
      if (nodes * size % 2 == 0) names.emplace_back("double-ring:2");
      for (const std::string& schedule : names) {
        for (const std::string& layout : on_layouts) {
          expect_correct(run_loopback_case(nodes * size, *sample, schedule, layout, size),
                         fmt::format("{} {} {} {} on {} nodes of {} ranks", schedule, layout, mask,
                                     name_of(type), nodes, size));
        }
      }
    }
  }
}

TEST(DistributedAttention, RingsBetweenAndInsideNodes) {
  cross_nodes({{2, 2}, {3, 1}, {4, 2}}, {"full"}, {"striped"}, {.tokens = 61}, DType::f32);
  cross_nodes({{3, 2}, {2, 3}}, {"causal", "window:20,7"}, {"contiguous", "zigzag"}, {.tokens = 61},
              DType::f32);
  cross_nodes({{2, 4}}, {"documents:0,5,31,32,45"}, {"contiguous"}, {.tokens = 61, .batch = 2}, DType::bf16);
  cross_nodes({{3, 3}}, {"causal"}, {"block-striped:3"}, {.tokens = 7}, DType::f32);  // ranks without rows
}

TEST(DistributedAttention, SixteenBitTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::string& schedule : schedules) {
      const auto sample = make_sample("causal", {.tokens = 61}, type);
      expect_correct(run_loopback_case(4, *sample, schedule, "zigzag"),
                     fmt::format("{} {}", schedule, name_of(type)));
    }
  }
}

TEST(DistributedAttention, AnyNumberOfRanks) {
  const auto sample = make_sample("causal", {.tokens = 97});
  for (const int ranks : {1, 2, 5, 8}) {
    for (const std::string& schedule : schedules) {
      expect_correct(run_loopback_case(ranks, *sample, schedule, "striped", 2),
                     fmt::format("{} on {} ranks", schedule, ranks));
    }
  }
}

TEST(DistributedAttention, BatchesAndHeadGroups) {
  for (const Shape& shape : {Shape{.tokens = 45, .heads = 4, .kv_heads = 2, .head_dim = 24, .batch = 2},
                             Shape{.tokens = 45, .heads = 3, .kv_heads = 3, .head_dim = 16, .batch = 3},
                             Shape{.tokens = 45, .heads = 5, .kv_heads = 1, .head_dim = 40, .batch = 1}}) {
    const auto sample = make_sample("window:11,3", shape);
    for (const std::string& schedule : schedules) {
      expect_correct(run_loopback_case(3, *sample, schedule, "block-striped:3"),
                     fmt::format("{} with {} heads, {} kv heads, batch {}", schedule, shape.heads,
                                 shape.kv_heads, shape.batch));
    }
  }
}

TEST(DistributedAttention, RanksThatOwnNothing) {
  for (const std::int64_t tokens : {1, 3}) {
    const auto sample = make_sample("causal", {.tokens = tokens});
    for (const std::string& schedule : schedules) {
      for (const std::string& layout : layouts) {
        expect_correct(run_loopback_case(5, *sample, schedule, layout),
                       fmt::format("{} {} with {} tokens on 5 ranks", schedule, layout, tokens));
      }
    }
  }
}

TEST(DistributedAttention, NullCommunicatorIsOneRank) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto communicator = comm::make_null();
  expect_correct(run(*communicator, *sample, "ring", Layout::parse("zigzag")), "null communicator");
}

TEST(DistributedAttention, TheSameBitsAgain) {
  const auto sample = make_sample("causal", {.tokens = 61});
  for (const std::string& schedule : schedules) {
    comm::run_loopback(Topology::uniform(4, 4), [&](comm::Communicator& communicator) {
      const auto problem = sample->problem(communicator.topology(), Layout::parse("striped"));
      run(communicator, *sample, plan::make_plan(schedule, problem, plan::Pass::forward),
          plan::make_plan(schedule, problem, plan::Pass::backward), Again::all);
    });
  }
}

// Other documents, then a longer sequence: buffers grow; then the first again.
TEST(DistributedAttention, TakesOtherPlans) {
  std::vector<std::shared_ptr<const Sample>> samples;
  for (const auto& [mask, tokens] : {std::pair{"documents:0,9,30", 61},
                                     {"documents:0,33", 61},
                                     {"causal", 120},
                                     {"documents:0,9,30", 61}}) {
    samples.push_back(make_sample(mask, {.tokens = tokens}));
  }
  comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    const auto plan_of = [&](const Sample& sample, plan::Pass pass) {
      return plan::make_ring(sample.problem(communicator.topology(), Layout::parse("contiguous")), pass);
    };
    distributed::Attention<TestExec, float> attention(exec, communicator,
                                                      plan_of(*samples[0], plan::Pass::forward),
                                                      plan_of(*samples[0], plan::Pass::backward));
    for (const auto& sample : samples) {
      attention.set_plans(exec, plan_of(*sample, plan::Pass::forward),
                          plan_of(*sample, plan::Pass::backward));
      const PositionMap positions =
          Layout::parse("contiguous").shard(sample->mask.tokens(), 3, communicator.rank());
      const Errors errors = run(communicator, *sample, attention, positions);
      expect_correct(errors, sample->mask.to_string());
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
