#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "training/parameter_sharding/sharded_parameters.hpp"
#include "training/run/groups.hpp"
#include "training/run/saving/checkpoint_parts.hpp"
#include "training/run/state/master_buffers.hpp"
#include "training/run/state/model_state.hpp"
#include "training/run/state/tensor_hashes.hpp"

namespace annulus::training {

/// parallel.zero = 1, 2, 3: shards over the ranks of each group (parameter_sharding::ShardedParameters); the
/// groups hold copies.
template <class Exec, class T>
class ShardedState final : public ModelStateOn<Exec, T> {
 public:
  using typename ModelStateOn<Exec, T>::Tensors;
  using typename ModelStateOn<Exec, T>::UseTensor;

  /// `map` outlives this.
  ShardedState(const Exec& exec, ShardGroups groups, const model::ParameterMap& map,
               parameter_sharding::Stage stage, const optimizer::MasterOptions& options,
               const parameter_sharding::Updates& updates, comm::Sums sums,
               std::shared_ptr<model::BackwardMemory<Exec>> backward)
      : ModelStateOn<Exec, T>(exec),
        groups_(std::move(groups)),
        map_(map),
        stage_(stage),
        shards_(exec, groups_.ranks(), map,
                {.stage = stage,
                 .masters = options,
                 .updates = updates,
                 .channel = WorldChannels::sharding,
                 .sums = sums,
                 .replicas = groups_.replicas.get(),
                 .backward = std::move(backward)}) {}

  std::string description() const override {
    const int groups = groups_.groups();
    std::vector<std::string> compared;
    if (holds_weights()) compared.emplace_back("the weights, which all ranks hold,");
    if (groups > 1) compared.emplace_back("the groups' copies");
    return fmt::format(
               "parallel.zero = {}: the optimizer's state{} in shards over {}; {}", static_cast<int>(stage_),
               stage_ == parameter_sharding::Stage::optimizer   ? " lies"
               : stage_ == parameter_sharding::Stage::gradients ? " and gradients lie"
                                                                : ", gradients and parameters lie",
               groups > 1 ? fmt::format("the {} ranks of each of {} groups", groups_.ranks().size(), groups)
                          : fmt::format("{} ranks", groups_.ranks().size()),
               compared.empty() ? "no two ranks hold the same, so there is nothing to compare"
                                : fmt::format("{} are compared at times", fmt::join(compared, " and "))) +
           (shards_.master_shard().offloaded() ? "; " + offload_text(shards_.master_shard()) : "");
  }

  void initialize(std::uint64_t seed) override { shards_.initialize(exec_, seed); }

  std::vector<checkpoint::Slice> share() const override { return share_of_group(groups_.group()); }
  Buffers master_buffers() override { return buffers_of(exec_, shards_.master_shard()); }
  void restored(std::int64_t steps) override {
    for (int group = 0; group < groups_.groups() && groups_.groups() > 1; ++group)
      for (const checkpoint::Slice& slice : share_of_group(group))
        shards_.master_shard().broadcast(exec_, *groups_.replicas, group, slice.offset,
                                         slice.offset + slice.size());
    shards_.restored(exec_, steps);
  }
  void set_gate(std::function<void(std::int64_t)> gate) override { shards_.set_gate(std::move(gate)); }

  model::ParameterAccess<Exec, T>& access() override { return shards_; }

  void reset_times() override { shards_.reset_times(); }
  double exposed_seconds() override { return shards_.exposed_seconds(); }

  void forget_gradients() override { shards_.forget_gradients(exec_); }
  void reduce_gradients() override { shards_.reduce_gradients(exec_); }
  std::int64_t non_finite() const override { return shards_.non_finite(exec_); }
  optimizer::Clipping measure(optimizer::GradientClipper<Exec>& clipper) override {
    return shards_.measure(exec_, clipper);
  }
  void update(double learning_rate, float gradient_scale) override {
    shards_.update(exec_, learning_rate, gradient_scale);
  }

  void for_each_tensor(Tensors which, const UseTensor& use) override {
    if (groups_.group() != 0) return;
    auto tensor = map_.all().begin();
    for (int unit = 0; unit < shards_.partition().units(); ++unit) {
      const model::ParameterUnit& of = map_.unit(unit);
      const auto whole = which == Tensors::master_weights ? shards_.masters_at_root(exec_, unit)
                                                          : shards_.gradients_at_root(exec_, unit);
      for (; tensor != map_.all().end() && tensor->offset < of.end; ++tensor)
        if (whole.allocated()) use(*tensor, (*whole).data() + (tensor->offset - of.begin));
    }
  }

  std::vector<Copies> copies() override {
    std::vector<Copies> copies;
    const std::size_t tensors = map_.all().size();
    const parameter_sharding::Partition& partition = shards_.partition();
    std::vector<TensorRange> of_weights,
        of_shard;  // in whole weights, whose units are padded, and in the shard
    for (int unit = 0; unit < partition.units(); ++unit) {
      add_pieces(map_.unit(unit), partition.padded_offset(unit), of_weights);
      add_pieces(partition.part(unit, groups_.ranks().rank()), partition.offset_in_shard(unit), of_shard);
    }
    if (holds_weights())
      copies.push_back(
          {.hashes = tensor_hashes<T, Exec>(exec_, tensors, of_weights, {shards_.whole_weights(exec_)})});
    if (groups_.groups() > 1)
      copies.push_back({.hashes = master_hashes(exec_, shards_.master_shard(), tensors, of_shard),
                        .place = groups_.ranks().rank()});
    return copies;
  }
  Buffers held_buffers() override {
    Buffers held = buffers_of(exec_, shards_.master_shard());
    if constexpr (std::is_same_v<T, float>)
      if (holds_weights()) held.parameters = {exec_, shards_.whole_weights(exec_)};
    return held;
  }

 private:
  using ModelStateOn<Exec, T>::exec_;

  /// The share of the rank that has this one's place in another group.
  std::vector<checkpoint::Slice> share_of_group(int group) const {
    return shares_of_shard(shards_.partition(), groups_.ranks().rank(), group, groups_.groups());
  }
  bool holds_weights() const { return stage_ < parameter_sharding::Stage::parameters; }

  /// Appends the pieces of the elements `part` of the model, which lie in a buffer from `begin` on.
  void add_pieces(const model::ParameterUnit& part, std::int64_t begin,
                  std::vector<TensorRange>& pieces) const {
    for (std::size_t tensor = 0; tensor < map_.all().size(); ++tensor) {
      const model::Parameter& p = map_.all()[tensor];
      const std::int64_t first = std::max(p.offset, part.begin),
                         last = std::min(p.offset + p.size(), part.end);
      if (first < last)
        pieces.push_back(
            {begin + first - part.begin, begin + last - part.begin, static_cast<std::int64_t>(tensor)});
    }
  }

  ShardGroups groups_;
  const model::ParameterMap& map_;
  parameter_sharding::Stage stage_;
  parameter_sharding::ShardedParameters<Exec, T> shards_;
};

}  // namespace annulus::training
