#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/cast.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/optim/adamw.hpp>
#include <annulus/optim/non_finite.hpp>
#include <annulus/sharding/flat_ranges.hpp>

#include "train/model_state.hpp"
#include "train/tensor_hashes.hpp"

namespace annulus::train {

/// Every rank holds everything, in flat buffers (map.size()): the fp32 master weights, which the optimizer
/// updates, the weights of type T that the model computes with, gradients and moments in fp32. Where T is
/// float, the master is what the model computes with.
template <class Exec, class T>
class ReplicatedState final : public ModelState<Exec, T> {
 public:
  using typename ModelState<Exec, T>::Tensors;
  using typename ModelState<Exec, T>::UseTensor;

  /// `world` and `map` outlive this.
  ReplicatedState(const Exec& exec, comm::Communicator& world, const model::ParameterMap& map,
                  const optim::AdamWOptions& options)
      : world_(world),
        map_(map),
        master_weights_(Flat<float>::uninitialized(exec, MemoryCategory::parameters,
                                                   "annulus::train::parameters", map.size())),
        gradients_(Flat<float>::uninitialized(exec, MemoryCategory::gradients, "annulus::train::gradients",
                                              map.size())),
        rounded_(rounds ? Flat<T>::uninitialized(exec, MemoryCategory::parameters, "annulus::train::weights",
                                                 map.size())
                        : Flat<T>()),
        optimizer_(exec, options, map.size(), sharding::decay_ranges(map)),
        norm_blocks_(norm_blocks(exec, map)),
        non_finite_(exec),
        hashes_(exec, map),
        access_(map, compute(), *gradients_) {}

  std::string description() const override { return {}; }

  void initialize(const Exec& exec, std::uint64_t seed) override {
    model::initialize(exec, map_, seed, *master_weights_);
    round(exec);
  }

  void with_whole_buffers(const Exec& exec, const std::function<void(const Buffers&)>& work) override {
    if (world_.rank() == 0) work(held_buffers(exec));
  }
  void restored(const Exec& exec, std::int64_t steps) override {
    world_.broadcast(exec, *master_weights_, 0);
    world_.broadcast(exec, optimizer_.first_moment(), 0);
    world_.broadcast(exec, optimizer_.second_moment(), 0);
    optimizer_.set_steps(steps);
    round(exec);
  }

  model::ParameterAccess<Exec, T>& access() override { return access_; }

  void reset_times() override {}
  double exposed_seconds() override { return 0; }

  void forget_gradients(const Exec& exec) override {
    Kokkos::deep_copy(exec, *gradients_, 0.0f);
    non_finite_.reset(exec);
  }
  void reduce_gradients(const Exec& exec) override {
    // The sum over all ranks hides whose gradient went wrong first, so each rank looks at its own.
    non_finite_.look(exec, 0, *gradients_);
    world_.all_reduce(exec, *gradients_);
  }
  std::int64_t non_finite(const Exec& exec) const override { return non_finite_.last(exec); }
  optim::Clipping measure(const Exec& exec, optim::GradientClipper<Exec>& clipper) override {
    return clipper.measure(exec, *gradients_, norm_blocks_);
  }
  void update(const Exec& exec, double learning_rate, float gradient_scale) override {
    if constexpr (rounds)
      optimizer_.step(exec, *master_weights_, *gradients_, learning_rate, gradient_scale, *rounded_);
    else
      optimizer_.step(exec, *master_weights_, *gradients_, learning_rate, gradient_scale);
  }

  void for_each_tensor(const Exec&, Tensors which, const UseTensor& use) override {
    const float* const flat =
        which == Tensors::master_weights ? (*master_weights_).data() : (*gradients_).data();
    for (const model::Parameter& p : map_.all()) use(p, flat + p.offset);
  }

  std::vector<Copies> copies(const Exec& exec) override {
    return {{.hashes = hashes_.template of<float>(
                 exec, {*master_weights_, optimizer_.first_moment(), optimizer_.second_moment()})}};
  }
  Buffers held_buffers(const Exec& exec) override {
    return {{exec, *master_weights_}, {exec, optimizer_.first_moment()}, {exec, optimizer_.second_moment()}};
  }

 private:
  static constexpr bool rounds = !std::is_same_v<T, float>;
  template <class V>
  using Flat = Owned<Array1<V, Exec>>;

  static optim::NormBlocks<Exec> norm_blocks(const Exec& exec, const model::ParameterMap& map) {
    const sharding::UnitBlocks blocks = sharding::unit_blocks(map);
    return optim::NormBlocks<Exec>(exec, blocks.ranges, blocks.count);
  }

  Array1<const T, Exec> compute() const {
    if constexpr (rounds)
      return *rounded_;
    else
      return *master_weights_;
  }
  void round(const Exec& exec) const {
    if constexpr (rounds) cast<Exec, T, float>(exec, *master_weights_, *rounded_);
  }

  comm::Communicator& world_;
  const model::ParameterMap& map_;
  Flat<float> master_weights_, gradients_;
  Flat<T> rounded_;  // where T is not float
  optim::AdamW<Exec> optimizer_;
  optim::NormBlocks<Exec> norm_blocks_;
  optim::NonFinite<Exec> non_finite_;
  TensorHashes<Exec> hashes_;
  model::WholeParameters<Exec, T> access_;
};

}  // namespace annulus::train
