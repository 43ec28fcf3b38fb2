#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/cast.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/model/parameters.hpp>
#include <annulus/optim/adamw.hpp>
#include <annulus/train/flat_buffer.hpp>

namespace annulus::train {

/// The parameters of a run as flat buffers (map.size()): the fp32 master weights, which the optimizer
/// updates, the weights of type T that the model computes with, gradients and moments in fp32. Where T is
/// float, the master is what the model computes with.
template <class Exec, class T>
class Weights {
 public:
  Weights(const Exec& exec, const model::ParameterMap& map, const optim::AdamWOptions& options)
      : master_weights_(Master::uninitialized(exec, MemoryCategory::parameters, "annulus::train::parameters",
                                              map.size())),
        gradients_(
            Master::uninitialized(exec, MemoryCategory::gradients, "annulus::train::gradients", map.size())),
        optimizer_(exec, options, map.size(), decay_ranges(map)) {
    if constexpr (rounded)
      rounded_ =
          Compute::uninitialized(exec, MemoryCategory::parameters, "annulus::train::weights", map.size());
  }

  void initialize(const Exec& exec, const model::ParameterMap& map, std::uint64_t seed) {
    model::initialize(exec, map, seed, *master_weights_);
    round(exec);
  }

  /// For checkpoints. Whoever writes to them calls restored.
  Buffers buffers(const Exec& exec) const {
    return {{exec, *master_weights_}, {exec, optimizer_.first_moment()}, {exec, optimizer_.second_moment()}};
  }
  /// The same: master, first and second moment.
  std::array<Array1<const float, Exec>, 3> state() const {
    return {*master_weights_, optimizer_.first_moment(), optimizer_.second_moment()};
  }
  /// Gives all ranks the buffers of rank 0 as they are after `steps` updates.
  void restored(const Exec& exec, comm::Communicator& world, std::int64_t steps) {
    world.broadcast(exec, *master_weights_, 0);
    world.broadcast(exec, optimizer_.first_moment(), 0);
    world.broadcast(exec, optimizer_.second_moment(), 0);
    optimizer_.set_steps(steps);
    round(exec);
  }

  Array1<const T, Exec> compute() const {
    if constexpr (rounded)
      return *rounded_;
    else
      return *master_weights_;
  }
  /// In fp32.
  const Array1<float, Exec>& master_weights() const { return *master_weights_; }
  const Array1<float, Exec>& gradients() const { return *gradients_; }

  void update(const Exec& exec, double learning_rate, float gradient_scale) {
    if constexpr (rounded)
      optimizer_.step(exec, *master_weights_, *gradients_, learning_rate, gradient_scale, *rounded_);
    else
      optimizer_.step(exec, *master_weights_, *gradients_, learning_rate, gradient_scale);
  }

 private:
  static constexpr bool rounded = !std::is_same_v<T, float>;
  using Master = Owned<Array1<float, Exec>>;
  using Compute = Owned<Array1<T, Exec>>;

  static std::vector<optim::ParameterRange> decay_ranges(const model::ParameterMap& map) {
    std::vector<optim::ParameterRange> ranges;
    for (const model::Parameter& p : map.all()) ranges.push_back({p.offset, p.offset + p.size(), p.decay});
    return ranges;
  }

  void round(const Exec& exec) const {
    if constexpr (rounded) cast<Exec, T, float>(exec, *master_weights_, *rounded_);
  }

  Master master_weights_, gradients_;
  Compute rounded_;
  optim::AdamW<Exec> optimizer_;
};

}  // namespace annulus::train
