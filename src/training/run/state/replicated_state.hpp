#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "base/kokkos/memory/memory.hpp"
#include "training/model/backward_memory.hpp"
#include "training/optimizer/master_weights.hpp"
#include "training/optimizer/non_finite.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"
#include "training/parameter_sharding/muon_shards.hpp"
#include "training/parameter_sharding/state_arrays.hpp"
#include "training/run/saving/checkpoint_parts.hpp"
#include "training/run/state/master_buffers.hpp"
#include "training/run/state/model_state.hpp"
#include "training/run/state/tensor_hashes.hpp"

namespace annulus::training {

/// Every rank holds everything, in flat buffers (map.size()): the fp32 master weights, which the optimizer
/// updates, the weights of type T that the model computes with, gradients and moments in fp32. Where T is
/// float, the master is what the model computes with, unless it is offloaded.
template <class Exec, class T>
class ReplicatedState final : public ModelStateOn<Exec, T> {
 public:
  using typename ModelStateOn<Exec, T>::Tensors;
  using typename ModelStateOn<Exec, T>::UseTensor;

  /// `world` and `map` outlive this.
  ReplicatedState(const Exec& exec, comm::Communicator& world, const model::ParameterMap& map,
                  const optimizer::MasterOptions& options, const parameter_sharding::Updates& updates,
                  comm::Sums sums, std::shared_ptr<model::BackwardMemory<Exec>> backward)
      : ModelStateOn<Exec, T>(exec),
        world_(world),
        map_(map),
        sums_(sums),
        saving_(map.units(), world.size(), 1),
        masters_(exec, options, map.size(), parameter_sharding::update_ranges(map, updates)),
        backward_(std::move(backward)),
        gradients_(backward_->gradients()),
        weights_(weights(exec, map, options.offload)),
        norm_blocks_(norm_blocks(exec, map)),
        non_finite_(exec),
        access_(map, compute(), *backward_) {
    if (updates.muon)
      muon_.emplace(map, parameter_sharding::Partition(map.units(), 1, 1), updates,
                    typename parameter_sharding::MuonShards<Exec>::Options{
                        .weight_decay = options.adamw.weight_decay, .products = dtype_of<T>});
  }

  std::string description() const override { return offload_text(masters_); }

  void initialize(std::uint64_t seed) override {
    masters_.fill(exec_, 0, map_.size(), [&](std::int64_t first, const Array1<float, Exec>& values) {
      model::initialize_range(exec_, map_, seed, first, values);
    });
    round();
  }

  std::vector<checkpoint::Slice> share() const override { return shares_of_whole(saving_, world_.rank()); }
  Buffers master_buffers() override { return buffers_of(exec_, masters_); }
  void restored(std::int64_t steps) override {
    for (int rank = 0; rank < world_.size() && world_.size() > 1; ++rank)
      for (const checkpoint::Slice& slice : shares_of_whole(saving_, rank))
        masters_.broadcast(exec_, world_, rank, slice.begin, slice.end);
    masters_.set_steps(steps);
    round();
  }
  void set_gate(std::function<void(std::int64_t)> gate) override { masters_.set_gate(std::move(gate)); }

  model::ParameterAccess<Exec, T>& access() override { return access_; }

  void reset_times() override {}
  double exposed_seconds() override { return 0; }

  void forget_gradients() override {
    backward_->forget();
    non_finite_.reset(exec_);
  }
  void reduce_gradients() override {
    // The sum over all ranks hides whose gradient went wrong first, so each rank looks at its own.
    non_finite_.look(exec_, 0, gradients_);
    world_.all_reduce(exec_, gradients_, comm::ReduceOp::sum, sums_);
  }
  std::int64_t non_finite() const override { return non_finite_.last(exec_); }
  optimizer::Clipping measure(optimizer::GradientClipper<Exec>& clipper) override {
    return clipper.measure(exec_, gradients_, norm_blocks_);
  }
  void update(double learning_rate, float gradient_scale) override {
    const std::array<typename optimizer::MasterWeights<Exec, T>::WeightPart, 1> all{{{0, *weights_}}};
    masters_.step(exec_, gradients_, learning_rate, gradient_scale,
                  std::span(all).first(weights_.allocated() ? 1 : 0));
    if (muon_) {
      muon_->step(exec_, masters_, gradients_, learning_rate, gradient_scale);
      round();
    }
  }

  void for_each_tensor(Tensors which, const UseTensor& use) override {
    for (const model::Parameter& p : map_.all()) {
      if (which == Tensors::gradients)
        use(p, gradients_.data() + p.offset);
      else
        use(p, masters_.resident(exec_, p.offset, p.size()).values.data());
    }
  }

  std::vector<Copies> copies() override {
    return {{.hashes = master_hashes(exec_, masters_, map_.all().size(), pieces_of(map_))}};
  }
  Buffers held_buffers() override { return buffers_of(exec_, masters_); }

 private:
  using ModelStateOn<Exec, T>::exec_;
  template <class V>
  using Flat = Owned<Array1<V, Exec>>;

  /// Whole buffers; the gradient of a unit is fresh where an optimizer step first asks for it.
  class Access final : public model::WholeParameters<Exec, T> {
   public:
    Access(const model::ParameterMap& map, const Array1<const T, Exec>& weights,
           model::BackwardMemory<Exec>& backward)
        : model::WholeParameters<Exec, T>(map, weights, backward.gradients()), backward_(backward) {}
    model::UnitGradient<Exec> gradients(const Exec& exec, int unit) override {
      model::UnitGradient<Exec> gradient = model::WholeParameters<Exec, T>::gradients(exec, unit);
      gradient.fresh = backward_.hold(unit);
      return gradient;
    }

   private:
    model::BackwardMemory<Exec>& backward_;
  };

  /// Without elements where the model computes with the masters themselves.
  static Flat<T> weights(const Exec& exec, const model::ParameterMap& map, bool offload) {
    using namespace parameter_sharding;
    return allocate<T>(
        exec, array_of(state_arrays(map, {.weights = dtype_of<T>, .offload = offload}), weights_label));
  }

  static optimizer::NormBlocks<Exec> norm_blocks(const Exec& exec, const model::ParameterMap& map) {
    const parameter_sharding::UnitBlocks blocks = parameter_sharding::unit_blocks(map);
    return optimizer::NormBlocks<Exec>(exec, blocks.ranges, blocks.count);
  }

  Array1<const T, Exec> compute() const {
    if constexpr (std::is_same_v<T, float>)
      if (!weights_.allocated()) return masters_.masters();
    return *weights_;
  }
  void round() const {
    if (weights_.allocated()) masters_.round(exec_, 0, *weights_);
  }

  comm::Communicator& world_;
  const model::ParameterMap& map_;
  comm::Sums sums_;
  parameter_sharding::Partition saving_;  // who writes and reads what of a checkpoint
  optimizer::MasterWeights<Exec, T> masters_;
  std::optional<parameter_sharding::MuonShards<Exec>> muon_;
  std::shared_ptr<model::BackwardMemory<Exec>> backward_;
  Array1<float, Exec> gradients_;
  Flat<T> weights_;  // where they are not the masters
  optimizer::NormBlocks<Exec> norm_blocks_;
  optimizer::NonFinite<Exec> non_finite_;
  Access access_;
};

}  // namespace annulus::training
