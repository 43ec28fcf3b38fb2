#pragma once

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "training/model/parameters.hpp"

namespace annulus::model {

/// Where the gradient of a unit is summed.
template <class Exec>
struct UnitGradient {
  Array1<float, Exec> elements;  ///< (unit.size())
  bool fresh = false;            ///< they hold nothing yet: the model sets or clears all of them
};

/// Lends a model its weights and takes its gradients, one unit (ParameterMap::units) at a time, so that a
/// rank need not hold all of them (ZeRO; BurstEngine, section 4.1). The model asks in the order in which it
/// computes. All work is enqueued on `exec`.
template <class Exec, class T>
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;

  /// The weights of `unit`, (unit.size()), readable by work enqueued until release_weights. `next`: the unit
  /// whose weights are asked for after this one, so that they can be fetched meanwhile; −1: none.
  virtual Array1<const T, Exec> weights(const Exec& exec, int unit, int next) = 0;
  /// All work that reads the weights has been enqueued.
  virtual void release_weights(const Exec& exec, int unit) = 0;

  /// Where the model adds the gradient of `unit`.
  virtual UnitGradient<Exec> gradients(const Exec& exec, int unit) = 0;
  /// All work that adds to the gradient of this sequence has been enqueued.
  virtual void finish_gradients(const Exec& exec, int unit) = 0;
};

/// A whole buffer of (map.size()) weights, which stay as they are: for forward passes. Throws Error where a
/// gradient is asked for.
template <class Exec, class T>
class WholeWeights : public ParameterAccess<Exec, T> {
 public:
  /// `map` outlives this.
  WholeWeights(const ParameterMap& map, const Array1<const T, Exec>& weights) : map_(map), weights_(weights) {
    require(weights.extent(0) == static_cast<std::size_t>(map.size()),
            "the parameter buffer has {} elements, the model {}", weights.extent(0), map.size());
  }

  Array1<const T, Exec> weights(const Exec&, int unit, int) override {
    const ParameterUnit& of = map_.unit(unit);
    return Array1<const T, Exec>(weights_.data() + of.begin, of.size());
  }
  void release_weights(const Exec&, int) override {}
  UnitGradient<Exec> gradients(const Exec&, int unit) override {
    fail("the gradient of {} was asked for, where only forward passes are computed", map_.unit_name(unit));
  }
  void finish_gradients(const Exec&, int) override {}

 protected:
  const ParameterMap& map_;

 private:
  Array1<const T, Exec> weights_;
};

/// WholeWeights, and a buffer of (map.size()) gradients.
template <class Exec, class T>
class WholeParameters : public WholeWeights<Exec, T> {
 public:
  WholeParameters(const ParameterMap& map, const Array1<const T, Exec>& weights,
                  const Array1<float, Exec>& gradients)
      : WholeWeights<Exec, T>(map, weights), gradients_(gradients) {
    require(gradients.extent(0) == static_cast<std::size_t>(map.size()),
            "the gradient buffer has {} elements, the model {}", gradients.extent(0), map.size());
  }

  UnitGradient<Exec> gradients(const Exec&, int unit) override {
    const ParameterUnit& of = this->map_.unit(unit);
    return {Array1<float, Exec>(gradients_.data() + of.begin, of.size())};
  }

 private:
  Array1<float, Exec> gradients_;
};

}  // namespace annulus::model
