#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/sharding/sharded_parameters.hpp>

#include "train/model_state.hpp"
#include "train/shard_service.hpp"
#include "train/tensor_hashes.hpp"

namespace annulus::train {

/// parallel.zero = 1, 2, 3: shards over all ranks (sharding::ShardedParameters).
template <class Exec, class T>
class ShardedState final : public ModelState<Exec, T> {
 public:
  using typename ModelState<Exec, T>::Tensors;
  using typename ModelState<Exec, T>::UseTensor;

  /// `world` and `map` outlive this.
  ShardedState(const Exec& exec, comm::Communicator& world, const model::ParameterMap& map,
               sharding::Stage stage, const optim::AdamWOptions& options)
      : world_(world),
        map_(map),
        stage_(stage),
        shards_(exec, world, map, {.stage = stage, .adamw = options, .channel = WorldChannels::sharding}) {
    if (holds_weights()) hashes_ = std::make_unique<TensorHashes<Exec>>(exec, map, weight_offsets());
  }

  std::string description() const override {
    return fmt::format("parallel.zero = {}: the optimizer's state{} over {} ranks{}",
                       static_cast<int>(stage_),
                       stage_ == sharding::Stage::optimizer   ? " lies in shards"
                       : stage_ == sharding::Stage::gradients ? " and gradients lie in shards"
                                                              : ", gradients and parameters lie in shards",
                       world_.size(),
                       holds_weights() ? "; the weights that all of them hold are compared at times"
                                       : "; no two of them hold the same, so there is nothing to compare");
  }

  void initialize(const Exec& exec, std::uint64_t seed) override { shards_.initialize(exec, seed); }

  void with_whole_buffers(const Exec& exec, const std::function<void(const Buffers&)>& work) override {
    const Buffers mine{{exec, shards_.master_shard()},
                       {exec, shards_.first_moment_shard()},
                       {exec, shards_.second_moment_shard()}};
    ShardService(world_, shards_.partition(), mine, WorldChannels::shards).run(work);
  }
  void restored(const Exec& exec, std::int64_t steps) override { shards_.restored(exec, steps); }

  model::ParameterAccess<Exec, T>& access() override { return shards_; }

  void forget_gradients(const Exec& exec) override { shards_.forget_gradients(exec); }
  void reduce_gradients(const Exec& exec) override { shards_.reduce_gradients(exec); }
  std::int64_t non_finite(const Exec& exec) const override { return shards_.non_finite(exec); }
  optim::Clipping measure(const Exec& exec, optim::GradientClipper<Exec>& clipper) override {
    return shards_.measure(exec, clipper);
  }
  void update(const Exec& exec, double learning_rate, float gradient_scale) override {
    shards_.update(exec, learning_rate, gradient_scale);
  }

  void for_each_tensor(const Exec& exec, Tensors which, const UseTensor& use) override {
    const auto& shard = which == Tensors::master_weights ? shards_.master_shard() : shards_.gradient_shard();
    auto tensor = map_.all().begin();
    for (int unit = 0; unit < shards_.partition().units(); ++unit) {
      const model::ParameterUnit& of = map_.unit(unit);
      const auto whole = shards_.gather_at_root(exec, unit, shard);
      for (; tensor != map_.all().end() && tensor->offset < of.end; ++tensor)
        if (whole.allocated()) use(*tensor, (*whole).data() + (tensor->offset - of.begin));
    }
  }

  std::vector<std::uint64_t> replica_hashes(const Exec& exec) override {
    if (!holds_weights()) return {};
    return hashes_->template of<T>(exec, {shards_.whole_weights()});
  }
  Buffers held_buffers(const Exec& exec) override {
    Array1<float, Exec> weights = shards_.master_shard();
    if constexpr (std::is_same_v<T, float>)
      if (holds_weights()) weights = shards_.whole_weights();
    return {{exec, weights}, {exec, shards_.first_moment_shard()}, {exec, shards_.second_moment_shard()}};
  }

 private:
  bool holds_weights() const { return stage_ < sharding::Stage::parameters; }

  /// Of each tensor in the whole weights, whose units are padded.
  std::vector<std::int64_t> weight_offsets() const {
    std::vector<std::int64_t> offsets;
    int unit = 0;
    for (const model::Parameter& p : map_.all()) {
      while (p.offset >= map_.unit(unit).end) ++unit;
      offsets.push_back(shards_.partition().padded_offset(unit) + p.offset - map_.unit(unit).begin);
    }
    return offsets;
  }

  comm::Communicator& world_;
  const model::ParameterMap& map_;
  sharding::Stage stage_;
  sharding::ShardedParameters<Exec, T> shards_;
  std::unique_ptr<TensorHashes<Exec>> hashes_;  // of the weights that this rank holds whole
};

}  // namespace annulus::train
