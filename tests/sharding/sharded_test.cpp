// Training with shards of the parameters against training with all of them on every rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/comm/loopback.hpp>
#include <annulus/core/cast.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/sharding/flat_ranges.hpp>
#include <annulus/sharding/sharded_parameters.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/exec.hpp"

namespace annulus::sharding {
namespace {

using test::TestExec;

struct Setting {
  int ranks = 2, sequences = 1;
  bool tied = false;
  std::string schedule = "ring", layout = "zigzag";
};

model::LlamaConfig config_of(const Setting& run) {
  model::LlamaConfig config;
  config.vocabulary = 211;  // units are no multiples of anything
  config.layers = 3;
  config.hidden = 72;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 136;
  config.tied = run.tied;
  return config;
}

/// What an optimizer step leaves, of the whole model.
struct State {
  std::vector<float> masters, first_moment, second_moment;
  double norm = 0;
};

std::vector<float> on_host(const TestExec& exec, const Array1<const float, TestExec>& values) {
  std::vector<float> host(values.extent(0));
  Kokkos::deep_copy(
      exec, Kokkos::View<float*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(host.data(), host.size()),
      values);
  exec.fence("annulus::test: values on the host");
  return host;
}

constexpr std::int64_t length = 60;
const optim::AdamWOptions adamw = {};
constexpr double bound = 0.5;  // of the norm: clipping has something to do

/// Three optimizer steps of `sequences` sequences each on one rank of `world`: step(attention, llama) makes
/// one.
template <class T, class Step>
void updates(comm::Communicator& world, const TestExec& exec, const Setting& run, const Step& step) {
  plan::Problem problem;
  problem.topology = world.topology();
  problem.layout = Layout::parse(run.layout);
  problem.mask = Mask::parse("causal", length);
  const model::LlamaConfig config = config_of(run);
  problem.heads = config.heads;
  problem.kv_heads = config.kv_heads;
  problem.head_dim = config.head_dim;
  problem.activation = dtype_of<T>;
  distributed::Attention<TestExec, T> attention(exec, world,
                                                plan::make_plan(run.schedule, problem, plan::Pass::forward),
                                                plan::make_plan(run.schedule, problem, plan::Pass::backward));
  const PositionMap rows = problem.shard(world.rank());
  model::Llama<TestExec, T> llama(exec, config, rows);
  std::mt19937 random(3);
  for (int update = 0; update < 3; ++update) {
    std::vector<std::vector<std::int32_t>> tokens, targets;
    for (int s = 0; s < run.sequences; ++s) {
      std::vector<std::int32_t> all(length + 1), mine, mine_next;
      for (auto& token : all) token = static_cast<std::int32_t>(random() % 211);
      for (std::int64_t i = 0; i < rows.count; ++i) {
        mine.push_back(all[static_cast<std::size_t>(rows(i))]);
        mine_next.push_back(all[static_cast<std::size_t>(rows(i)) + 1]);
      }
      tokens.push_back(mine);
      targets.push_back(mine_next);
    }
    step([&](model::ParameterAccess<TestExec, T>& parameters) {
      for (std::size_t s = 0; s < tokens.size(); ++s)
        llama.train(exec, {.tokens = tokens[s], .targets = targets[s]}, 1.0f / (length * run.sequences),
                    {.attention = attention, .parameters = parameters});
      llama.take_loss(exec);
    });
  }
}

/// Replicas: all ranks hold everything. The norm has the blocks of units.
template <class T>
State replicated(const Setting& run) {
  State state;
  comm::run_loopback(Topology::uniform(run.ranks, 2), [&](comm::Communicator& world) {
    const TestExec exec = test::rank_instance();
    const model::ParameterMap map(config_of(run));
    const Array1<float, TestExec> masters("masters", map.size()), gradients("gradients", map.size());
    const Array1<T, TestExec> weights("weights", map.size());
    model::initialize(exec, map, 9, masters);
    if constexpr (std::is_same_v<T, float>) {
      Kokkos::deep_copy(exec, weights, masters);
    } else {
      cast<TestExec, T, float>(exec, masters, weights);
    }
    optim::AdamW<TestExec> optimizer(exec, adamw, map.size(), decay_ranges(map));
    const UnitBlocks unit_blocks = sharding::unit_blocks(map);
    const optim::NormBlocks<TestExec> norm_blocks(exec, unit_blocks.ranges, unit_blocks.count);
    optim::GradientClipper<TestExec> clipper(bound);
    updates<T>(world, exec, run, [&](const auto& learn) {
      Kokkos::deep_copy(exec, gradients, 0.0f);
      model::WholeParameters<TestExec, T> whole(map, weights, gradients);
      learn(whole);
      world.all_reduce(exec, gradients);
      const optim::Clipping clipping = clipper.measure(exec, gradients, norm_blocks);
      optimizer.step(exec, masters, gradients, 0.01, clipping.scale, weights);
      if (world.rank() == 0) state.norm = clipping.norm;
    });
    if (world.rank() != 0) return;
    state.masters = on_host(exec, masters);
    state.first_moment = on_host(exec, optimizer.first_moment());
    state.second_moment = on_host(exec, optimizer.second_moment());
  });
  return state;
}

template <class T>
State sharded(const Setting& run, Stage stage) {
  const model::ParameterMap map(config_of(run));
  const auto size = static_cast<std::size_t>(map.size());
  State state{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size)};
  comm::run_loopback(Topology::uniform(run.ranks, 2), [&](comm::Communicator& world) {
    const TestExec exec = test::rank_instance();
    ShardedParameters<TestExec, T> parameters(exec, world, map,
                                              {.stage = stage, .adamw = adamw, .channel = 40});
    parameters.initialize(exec, 9);
    optim::GradientClipper<TestExec> clipper(bound);
    updates<T>(world, exec, run, [&](const auto& learn) {
      parameters.forget_gradients(exec);
      learn(parameters);
      parameters.reduce_gradients(exec);
      const optim::Clipping clipping = parameters.measure(exec, clipper);
      parameters.update(exec, 0.01, clipping.scale);
      if (world.rank() == 0) state.norm = clipping.norm;
    });
    const Partition& partition = parameters.partition();
    const auto collect = [&](const Array1<float, TestExec>& shard, std::vector<float>& whole) {
      const std::vector<float> mine = on_host(exec, shard);
      for (int unit = 0; unit < partition.units(); ++unit) {
        const model::ParameterUnit part = partition.part(unit, world.rank());
        std::copy_n(mine.begin() + partition.offset_in_shard(unit), part.size(), whole.begin() + part.begin);
      }
    };
    collect(parameters.master_shard(), state.masters);
    collect(parameters.first_moment_shard(), state.first_moment);
    collect(parameters.second_moment_shard(), state.second_moment);
  });
  return state;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double(a[i]) - b[i]));
  return worst;
}

class Sharded : public testing::TestWithParam<Stage> {
 protected:
  template <class T>
  static void expect_same_bits(const Setting& run) {
    SCOPED_TRACE(fmt::format("{} ranks, {} sequences, {}, {} / {}, {}", run.ranks, run.sequences,
                             run.tied ? "tied" : "untied", run.schedule, run.layout, name_of(dtype_of<T>)));
    const State expected = replicated<T>(run), found = sharded<T>(run, GetParam());
    EXPECT_EQ(found.norm, expected.norm);
    EXPECT_GT(expected.norm, bound);
    EXPECT_TRUE(found.masters == expected.masters) << worst_difference(found.masters, expected.masters);
    EXPECT_TRUE(found.first_moment == expected.first_moment);
    EXPECT_TRUE(found.second_moment == expected.second_moment);
  }
};

INSTANTIATE_TEST_SUITE_P(Stages, Sharded,
                         testing::Values(Stage::optimizer, Stage::gradients, Stage::parameters),
                         [](const auto& info) { return fmt::format("{}", static_cast<int>(info.param)); });

TEST_P(Sharded, OneSequenceGivesTheBitsOfReplicas) {
  expect_same_bits<float>({.ranks = 1});
  expect_same_bits<float>({.ranks = 2, .schedule = "burst"});
  expect_same_bits<float>({.ranks = 3, .layout = "striped"});
  expect_same_bits<float>({.ranks = 4, .schedule = "topology-burst"});
  expect_same_bits<bfloat16>({.ranks = 2});
  expect_same_bits<bfloat16>({.ranks = 3, .schedule = "ulysses", .layout = "contiguous"});
}

// The gradient of the tied weight is complete behind the embedding's share, which comes last.
TEST_P(Sharded, TiedHeadsGiveTheBitsOfReplicas) {
  expect_same_bits<float>({.ranks = 3, .tied = true});
  expect_same_bits<bfloat16>({.ranks = 2, .tied = true});
}

TEST_P(Sharded, SeveralSequencesAgree) {
  const Setting run{.ranks = 2, .sequences = 3};
  if (GetParam() == Stage::optimizer) return expect_same_bits<float>(run);
  const State expected = replicated<float>(run), found = sharded<float>(run, GetParam());
  EXPECT_NEAR(found.norm, expected.norm, 2e-6 * expected.norm);
  // An update moves a parameter by the learning rate, whatever its gradient's size; rounding may turn the
  // sign of a gradient that is all but zero.
  double squares = 0, difference = 0;
  for (std::size_t i = 0; i < expected.masters.size(); ++i) {
    squares += double(expected.masters[i]) * expected.masters[i];
    difference += std::pow(double(expected.masters[i]) - found.masters[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / squares), 2e-6);
}

// A rank that ends while the others wait for its part.
TEST_P(Sharded, WaitsSayWhatForAndEndWhenARankFails) {
  const model::ParameterMap map(config_of({}));
  const auto error_of = [&](const auto& body) {
    try {
      comm::run_loopback(Topology::uniform(2, 2), [&](comm::Communicator& world) {
        const TestExec exec = test::rank_instance();
        ShardedParameters<TestExec, float> parameters(exec, world, map, {.stage = GetParam()});
        parameters.initialize(exec, 9);
        parameters.forget_gradients(exec);
        body(world, exec, parameters);
      });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const int unit = map.layer_unit(1);
  if (GetParam() == Stage::parameters) {
    EXPECT_THAT(error_of([&](comm::Communicator& world, const TestExec& exec, auto& parameters) {
                  if (world.rank() == 0) parameters.weights(exec, unit, -1);
                }),
                testing::HasSubstr("the all-gather of the weights of layer 1"));
  }
  EXPECT_THAT(error_of([&](comm::Communicator& world, const TestExec& exec, auto& parameters) {
                if (world.rank() == 1) return;
                parameters.gradients(exec, unit);
                parameters.finish_gradients(exec, unit);
                parameters.reduce_gradients(exec);
              }),
              testing::HasSubstr("the reduce-scatter of the gradient of"));
  EXPECT_THAT(error_of([&](comm::Communicator& world, const TestExec& exec, auto& parameters) {
                parameters.gradients(exec, unit);
                parameters.finish_gradients(exec, unit);
                if (world.rank() == 1) fail("this rank is lost");
                parameters.reduce_gradients(exec);
              }),
              testing::HasSubstr("this rank is lost"));
}

#ifndef ANNULUS_TEST_ON_DEVICE
// As the table at Stage says: what stays, and the most while an optimizer step is made.
TEST_P(Sharded, MemoryFallsAsTheFormulaSays) {
  const auto bytes = [](MemoryCategory category) {
    return memory_use(MemoryKind::host).current[static_cast<int>(category)];
  };
  for (const int ranks : {1, 2, 3, 4}) {
    const model::ParameterMap map(config_of({}));
    comm::run_loopback(Topology::uniform(ranks, 2), [&](comm::Communicator& world) {
      const std::int64_t parameters_before = bytes(MemoryCategory::parameters),
                         gradients_before = bytes(MemoryCategory::gradients),
                         optimizer_before = bytes(MemoryCategory::optimizer);
      world.barrier();
      const TestExec exec = test::rank_instance();
      ShardedParameters<TestExec, bfloat16> parameters(exec, world, map, {.stage = GetParam()});
      world.barrier();
      const Partition& partition = parameters.partition();
      const std::int64_t shard = partition.shard_size(), whole = partition.padded_size();
      EXPECT_LT(whole, map.size() + 5 * ranks * optim::NormBlocks<TestExec>::size);
      if (world.rank() == 0) {
        EXPECT_EQ(bytes(MemoryCategory::parameters) - parameters_before,
                  ranks * (4 * shard + (GetParam() < Stage::parameters ? 2 * whole : 0)));
        EXPECT_EQ(bytes(MemoryCategory::gradients) - gradients_before,
                  ranks * (4 * shard + (GetParam() < Stage::gradients ? 4 * whole : 0)));
        EXPECT_GE(bytes(MemoryCategory::optimizer) - optimizer_before, ranks * 8 * shard);
        EXPECT_LT(bytes(MemoryCategory::optimizer) - optimizer_before, ranks * (8 * shard + 8192));
        reset_memory_peaks();
      }
      world.barrier();
      parameters.initialize(exec, 9);
      optim::GradientClipper<TestExec> clipper(bound);
      updates<bfloat16>(world, exec, {.ranks = ranks, .sequences = 2}, [&](const auto& learn) {
        parameters.forget_gradients(exec);
        learn(parameters);
        parameters.reduce_gradients(exec);
        parameters.update(exec, 0.01, parameters.measure(exec, clipper).scale);
      });
      world.barrier();
      if (world.rank() == 0) {
        const auto peak = [](MemoryCategory category) {
          return memory_use(MemoryKind::host).peak[static_cast<int>(category)];
        };
        std::int64_t unit = 0;  // the largest
        for (int i = 0; i < partition.units(); ++i) unit = std::max(unit, partition.padded_size(i));
        EXPECT_LE(peak(MemoryCategory::parameters) - parameters_before,
                  ranks * (4 * shard + (GetParam() < Stage::parameters ? 2 * whole : 4 * unit)));
        EXPECT_LE(peak(MemoryCategory::gradients) - gradients_before,
                  ranks * (4 * shard + (GetParam() < Stage::gradients ? 4 * whole : 8 * unit)));
      }
      world.barrier();
    });
  }
}
#endif

}  // namespace
}  // namespace annulus::sharding
