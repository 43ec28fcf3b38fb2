// Training with shards of the parameters against training with all of them on every rank.
#include <gtest/gtest.h>

#include <annulus/attention/comm/loopback.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <type_traits>
#include <vector>

#include "base/kokkos/cast.hpp"
#include "support/error_text.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"
#include "training/parameter_sharding/tiny_model.hpp"

namespace annulus::parameter_sharding {
namespace {

using test::TestExec;
using tiny::adamw, tiny::bound, tiny::config_of, tiny::on_host, tiny::Setting, tiny::updates;

/// What an optimizer step leaves, of the whole model.
struct State {
  std::vector<float> masters, first_moment, second_moment;
  double norm = 0;
};

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
    optimizer::AdamW<TestExec> optimizer(exec, adamw, map.size(), update_ranges(map, Updates()));
    const UnitBlocks unit_blocks = parameter_sharding::unit_blocks(map);
    const optimizer::NormBlocks<TestExec> norm_blocks(exec, unit_blocks.ranges, unit_blocks.count);
    optimizer::GradientClipper<TestExec> clipper(bound);
    updates<T>(world, exec, run, [&](const auto& learn) {
      Kokkos::deep_copy(exec, gradients, 0.0f);
      model::WholeParameters<TestExec, T> whole(map, weights, gradients);
      learn(whole);
      world.all_reduce(exec, gradients);
      const optimizer::Clipping clipping = clipper.measure(exec, gradients, norm_blocks);
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

/// `share`: gradients and what layers keep lie in one block.
template <class T>
State sharded(const Setting& run, Stage stage, bool offload = false, bool share = false) {
  const model::ParameterMap map(config_of(run));
  const auto size = static_cast<std::size_t>(map.size());
  State state{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size)};
  comm::run_loopback(Topology::uniform(run.ranks, 2), [&](comm::Communicator& world) {
    const TestExec exec = test::rank_instance();
    std::shared_ptr<model::BackwardMemory<TestExec>> backward;
    if (share)
      backward = std::make_shared<model::BackwardMemory<TestExec>>(
          exec, kept_by_layers<T>(world, run),
          unit_arrays(config_of(run), {.stage = static_cast<int>(stage), .ranks = run.ranks}, run.sequences)
              .held);
    ShardedParameters<TestExec, T> parameters(
        exec, world, map,
        {.stage = stage,
         .masters = {.adamw = adamw, .offload = offload, .piece = 5000},  // units are of several pieces
         .channel = 40,
         .backward = backward});
    parameters.initialize(exec, 9);
    optimizer::GradientClipper<TestExec> clipper(bound);
    const auto step = [&](const auto& learn) {
      const double norm = tiny::step_of(parameters, exec, clipper, 0.01, learn);
      if (world.rank() == 0) state.norm = norm;
    };
    updates<T>(world, exec, run, step, backward);
    const Partition& partition = parameters.partition();
    const auto collect = [&](const auto& where, const auto& shard, std::vector<float>& whole) {
      const std::vector<float> mine = on_host(where, shard);
      for (int unit = 0; unit < partition.units(); ++unit) {
        const model::ParameterUnit part = partition.part(unit, world.rank());
        std::copy_n(mine.begin() + partition.offset_in_shard(unit), part.size(), whole.begin() + part.begin);
      }
    };
    parameters.master_shard().visit(
        exec, [&](const auto& where, const auto& masters, const auto& first, const auto& second) {
          collect(where, masters, state.masters);
          collect(where, first, state.first_moment);
          collect(where, second, state.second_moment);
        });
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
  static void expect_same_bits(const Setting& run, bool offload = false, bool share = false) {
    SCOPED_TRACE(fmt::format("{} ranks, {} sequences, {}, {} / {}, {}, {}{}", run.ranks, run.sequences,
                             run.tied ? "tied" : "untied", run.schedule, run.layout, name_of(dtype_of<T>),
                             name_of(run.recompute), offload ? ", offloaded" : ""));
    const State expected = replicated<T>(run), found = sharded<T>(run, GetParam(), offload, share);
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

TEST_P(Sharded, OtherBlocksGiveTheBitsOfReplicas) {
  expect_same_bits<float>({.ranks = 3, .block = {.qkv_bias = true}});
  expect_same_bits<bfloat16>({.ranks = 2, .block = {.qk_norm = model::QkNorm::head}});
  expect_same_bits<float>(
      {.ranks = 3, .block = {.norms = model::NormPlace::behind, .qk_norm = model::QkNorm::heads}});
  expect_same_bits<bfloat16>(
      {.ranks = 2, .tied = true, .block = {.norms = model::NormPlace::both, .scaled_embedding = true}});
}

TEST_P(Sharded, OffloadedOptimizersGiveTheBitsOfReplicas) {
  expect_same_bits<float>({.ranks = 1}, true);
  expect_same_bits<float>({.ranks = 3, .tied = true}, true);
  expect_same_bits<bfloat16>({.ranks = 2}, true);
  expect_same_bits<bfloat16>({.ranks = 4, .schedule = "burst"}, true);
}

// Gradients overwrite what layers have kept for backward passes that are over.
TEST_P(Sharded, GradientsInTheMemoryOfLayersHaveTheSameBits) {
  using enum model::Recompute;
  for (const model::Recompute recompute : {none, full, selective})
    expect_same_bits<float>({.ranks = 2, .recompute = recompute}, false, true);
  expect_same_bits<float>({.ranks = 3, .tied = true, .recompute = selective}, false, true);
  expect_same_bits<bfloat16>({.ranks = 2, .recompute = full}, true, true);
  const Setting several{.ranks = 2, .sequences = 2};
  EXPECT_TRUE(sharded<float>(several, GetParam(), false, true).masters ==
              sharded<float>(several, GetParam()).masters);
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
  // A rank with copies of a device under way cannot tell that no other rank will ever come.
  const std::chrono::milliseconds patience =
      test::on_host ? std::chrono::seconds(120) : std::chrono::seconds(1);
  const model::ParameterMap map(config_of({}));
  for (const Topology& topology : {Topology::uniform(2, 2), Topology::uniform(4, 2)}) {
    const auto error_of = [&](const auto& body) {
      const auto on_rank = [&](comm::Communicator& world) {
        const TestExec exec = test::rank_instance();
        ShardedParameters<TestExec, float> parameters(exec, world, map, {.stage = GetParam()});
        parameters.initialize(exec, 9);
        parameters.forget_gradients(exec);
        body(world, exec, parameters);
      };
      return error_text([&] { comm::run_loopback(topology, on_rank, {.stall_timeout = patience}); });
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
}

#ifndef ANNULUS_TEST_ON_DEVICE
// Seven billion parameters in shards over two ranks with 32768 rows each, as docs/memory.md says: what the
// layers keep under full recompute lies in the memory of gradients.
TEST(StateArrays, OfGradientsBesideWhatLayersKeep) {
  const model::Config config{.vocabulary = 32000,
                             .layers = 32,
                             .hidden = 4096,
                             .heads = 32,
                             .kv_heads = 32,
                             .head_dim = 128,
                             .ffn = 11008,
                             .rope = {}};
  const auto gib = [&](model::Recompute recompute, int stage, std::int64_t passes) {
    const ArrayTable kept = model::model_arrays(config, {.tokens = 32768}, DType::bf16,
                                                {.recompute = {recompute}, .chunk_rows = 4096}, passes, false)
                                .kept;
    const ArrayTable gradients = unit_arrays(config, {.stage = stage, .ranks = 2}, passes).held;
    return double(model::backward_layout(kept, gradients).bytes) / double(1 << 30);
  };
  using enum model::Recompute;
  EXPECT_NEAR(gib(full, 3, 1), 12.55, 0.01);
  EXPECT_NEAR(gib(full, 3, 2), 20.55, 0.01);
  EXPECT_NEAR(gib(selective, 3, 1), 16.125, 0.01);
  EXPECT_NEAR(gib(full, 0, 1), 25.10, 0.01);
}

// Whole on every rank: the table of docs/memory.md to the byte.
TEST(StateArrays, OfWholeBuffers) {
  const model::ParameterMap map(config_of({}));
  const std::int64_t n = map.size();
  const auto bytes = [&](DType weights, bool offload, bool pinned) {
    const StateLayout layout{.weights = weights, .offload = offload};
    MemoryBytes sum{};
    for (const PlannedArray& array : state_arrays(map, layout))
      if (array.pinned == pinned) at(sum, array.category) += array.bytes();
    if (!pinned) at(sum, MemoryCategory::gradients) += bytes_of(held_gradients(map, layout));
    return sum;
  };
  const auto device = [&](DType weights, bool offload) {
    return total_bytes(bytes(weights, offload, false));
  };
  EXPECT_EQ(device(DType::bf16, false), 18 * n);
  EXPECT_EQ(device(DType::f32, false), 16 * n);
  EXPECT_EQ(device(DType::bf16, true), 6 * n);
  EXPECT_EQ(device(DType::f32, true), 8 * n);
  MemoryBytes host = bytes(DType::bf16, true, true);
  EXPECT_EQ(at(host, MemoryCategory::parameters), 4 * n);
  EXPECT_EQ(at(host, MemoryCategory::optimizer), 8 * n);
}
#endif

}  // namespace
}  // namespace annulus::parameter_sharding
