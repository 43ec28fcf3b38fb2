#pragma once

#include <random>

#include <annulus/attention/plan/schedules.hpp>

#include "support/exec.hpp"
#include "training/model/model.hpp"
#include "training/model/model_arrays.hpp"
#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/sharded_parameters.hpp"

/// A model of some units that learns random sequences in milliseconds.
namespace annulus::parameter_sharding::tiny {

using annulus::test::TestExec;

struct Setting {
  int ranks = 2, sequences = 1;
  bool tied = false;
  std::string schedule = "ring", layout = "zigzag";
  int updates = 3, kv_heads = 2;
  model::Block block = {};
  model::Recompute recompute = model::Recompute::none;
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
  config.tied = run.tied;
  config.block = run.block;
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

inline constexpr std::int64_t length = 60;
inline const optimizer::AdamWOptions adamw = {};
inline constexpr double bound = 0.5;  // of the norm: clipping has something to do

/// What the layers of updates() keep on this rank.
template <class T>
ArrayTable kept_by_layers(const comm::Communicator& world, const Setting& run) {
  const PositionMap rows = Layout::parse(run.layout).shard(length, world.size(), world.rank());
  return model::model_arrays(config_of(run), {.tokens = rows.count}, dtype_of<T>,
                             {.recompute = {run.recompute}}, run.sequences, annulus::test::on_host)
      .kept;
}

/// `run.updates` optimizer steps of `sequences` sequences each on one rank of `world`: step(learn) makes one,
/// and learn(parameters) hands its sequences to the model, which keeps its tensors in `backward` (null: in
/// memory of its own).
template <class T, class Step>
void updates(comm::Communicator& world, const TestExec& exec, const Setting& run, const Step& step,
             std::shared_ptr<model::BackwardMemory<TestExec>> backward = nullptr) {
  plan::Problem problem;
  problem.topology = world.topology();
  problem.layout = Layout::parse(run.layout);
  problem.mask = Mask::parse("causal", length);
  const model::Config config = config_of(run);
  problem.heads = config.heads;
  problem.kv_heads = config.kv_heads;
  problem.head_dim = config.head_dim;
  problem.dtype = dtype_of<T>;
  executor::Attention<TestExec, T> attention(exec, world,
                                             plan::make_plan(run.schedule, problem, plan::Pass::forward),
                                             plan::make_plan(run.schedule, problem, plan::Pass::backward));
  const PositionMap rows = problem.shard(world.rank());
  model::Model<TestExec, T> model(exec, config, rows,
                                  {.activations = {.recompute = {run.recompute}}, .backward = backward});
  std::mt19937 random(3);
  for (int update = 0; update < run.updates; ++update) {
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
        model.train(exec, {.tokens = tokens[s], .targets = targets[s]}, 1.0f / (length * run.sequences),
                    {.attention = attention, .parameters = parameters});
      model.take_loss(exec);
    });
  }
}

/// An optimizer step of shards, of which learn(parameters) makes the gradients; the norm.
template <class Shards, class Learn>
double step_of(Shards& shards, const TestExec& exec, optimizer::GradientClipper<TestExec>& clipper,
               double learning_rate, const Learn& learn) {
  shards.forget_gradients(exec);
  learn(shards);
  shards.reduce_gradients(exec);
  const optimizer::Clipping clipping = shards.measure(exec, clipper);
  shards.update(exec, learning_rate, clipping.scale);
  return clipping.norm;
}

/// This rank's shard of the masters after the updates of `run`. Attention has channels of its own in
/// `context`, as in training.
template <class T>
std::vector<float> masters(comm::Communicator& world, comm::Communicator& context, const TestExec& exec,
                           Stage stage, const Setting& run) {
  const model::ParameterMap map(config_of(run));
  ShardedParameters<TestExec, T> shards(exec, world, map,
                                        {.stage = stage, .masters = {.adamw = adamw}, .channel = 1});
  shards.initialize(exec, 9);
  optimizer::GradientClipper<TestExec> clipper(bound);
  updates<T>(context, exec, run, [&](const auto& learn) { step_of(shards, exec, clipper, 1e-3, learn); });
  return on_host(exec, shards.master_shard().masters());
}

}  // namespace annulus::parameter_sharding::tiny
