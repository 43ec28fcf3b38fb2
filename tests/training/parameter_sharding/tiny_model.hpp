#pragma once

#include <random>

#include <annulus/attention/plan/schedules.hpp>

#include "support/exec.hpp"
#include "training/model/model.hpp"
#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/sharded_parameters.hpp"

/// A model of some units that learns random sequences in milliseconds.
namespace annulus::parameter_sharding::tiny {

using annulus::test::TestExec;

struct Setting {
  std::string schedule = "ring", layout = "zigzag";
  int updates = 3, kv_heads = 2;
};

inline model::Config config_of(const Setting& run) {
  model::Config config;
  config.vocabulary = 211;  // units are no multiples of anything
  config.layers = 3;
  config.hidden = 72;
  config.heads = 4;
  config.kv_heads = run.kv_heads;
  config.head_dim = 16;
  config.ffn = 136;
  return config;
}

template <class Exec>
std::vector<float> on_host(const Exec& exec, const Array1<float, Exec>& values) {
  std::vector<float> host(values.extent(0));
  Kokkos::deep_copy(
      exec, Kokkos::View<float*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(host.data(), host.size()),
      values);
  exec.fence("annulus::test: values on the host");
  return host;
}

/// This rank's shard of the masters after optimizer steps of a sequence each. Attention has channels of its
/// own in `context`, as in training.
template <class T>
std::vector<float> masters(comm::Communicator& world, comm::Communicator& context, const TestExec& exec,
                           Stage stage, const Setting& run) {
  constexpr std::int64_t length = 60;
  const model::Config config = config_of(run);
  plan::Problem problem;
  problem.topology = context.topology();
  problem.layout = Layout::parse(run.layout);
  problem.mask = Mask::parse("causal", length);
  problem.heads = config.heads;
  problem.kv_heads = config.kv_heads;
  problem.head_dim = config.head_dim;
  problem.dtype = dtype_of<T>;
  executor::Attention<TestExec, T> attention(exec, context,
                                             plan::make_plan(run.schedule, problem, plan::Pass::forward),
                                             plan::make_plan(run.schedule, problem, plan::Pass::backward));
  const PositionMap rows = problem.shard(context.rank());
  model::Model<TestExec, T> model(exec, config, rows, {});
  const model::ParameterMap map(config);
  ShardedParameters<TestExec, T> shards(exec, world, map, {.stage = stage, .channel = 1});
  shards.initialize(exec, 9);
  optimizer::GradientClipper<TestExec> clipper(0.5);  // clipping has something to do
  std::mt19937 random(3);
  for (int update = 0; update < run.updates; ++update) {
    std::vector<std::int32_t> all(length + 1), tokens, targets;
    for (auto& token : all) token = static_cast<std::int32_t>(random() % 211);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      tokens.push_back(all[static_cast<std::size_t>(rows(i))]);
      targets.push_back(all[static_cast<std::size_t>(rows(i)) + 1]);
    }
    shards.forget_gradients(exec);
    model.train(exec, {.tokens = tokens, .targets = targets}, 1.0f / length,
                {.attention = attention, .parameters = shards});
    model.take_loss(exec);
    shards.reduce_gradients(exec);
    shards.update(exec, 1e-3, shards.measure(exec, clipper).scale);
  }
  return on_host(exec, shards.master_shard().masters());
}

}  // namespace annulus::parameter_sharding::tiny
