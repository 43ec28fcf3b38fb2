// What waits for shards say, and the memory of parameters, gradients and the optimizer. That shards have the
// bits of replicas is tested with whole runs (tests/training/run/state/zero_test.cpp).
#include <gtest/gtest.h>

#include <chrono>

#include <annulus/attention/comm/loopback.hpp>

#include "support/error_text.hpp"
#include "training/model/model_arrays.hpp"
#include "training/parameter_sharding/tiny_model.hpp"

namespace annulus::parameter_sharding {
namespace {

using test::TestExec;
using tiny::config_of;

class Sharded : public testing::TestWithParam<Stage> {};

INSTANTIATE_TEST_SUITE_P(Stages, Sharded,
                         testing::Values(Stage::optimizer, Stage::gradients, Stage::parameters),
                         [](const auto& info) { return fmt::format("{}", static_cast<int>(info.param)); });

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
