#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/prediction/step/update_memory.hpp>
#include <annulus/training/model/unit_calls.hpp>

#include "training/model/parameter_access.hpp"

namespace annulus::training {

/// What this process holds at the moments of an optimizer step that prediction::update_memory predicts: it
/// looks behind each call of the model to its parameters, and keeps of every part of a pass the most.
template <class Exec, class T>
class MemoryTrace final : public model::ParameterAccess<Exec, T> {
 public:
  /// Hands calls on to `parameters`, which outlives this.
  MemoryTrace(const model::ParameterMap& map, model::ParameterAccess<Exec, T>& parameters)
      : calls_(model::unit_calls(map)), parameters_(parameters) {}

  Array1<const T, Exec> weights(const Exec& exec, int unit, int next) override {
    auto weights = parameters_.weights(exec, unit, next);
    look_behind_call();
    return weights;
  }
  void release_weights(const Exec& exec, int unit) override {
    parameters_.release_weights(exec, unit);
    look_behind_call();
  }
  model::UnitGradient<Exec> gradients(const Exec& exec, int unit) override {
    auto gradients = parameters_.gradients(exec, unit);
    look_behind_call();
    return gradients;
  }
  void finish_gradients(const Exec& exec, int unit) override {
    parameters_.finish_gradients(exec, unit);
    look_behind_call();
  }

  /// What is held now, at a moment outside the passes.
  void look(const std::string& name) { add(name, now()); }
  /// Of the last pass, and behind it.
  std::vector<prediction::MomentMemory> take() { return std::exchange(moments_, {}); }

 private:
  struct Held {
    MemoryBytes device, host;
    std::int64_t total() const {
      return std::accumulate(device.begin(), device.end(), std::int64_t{0}) +
             std::accumulate(host.begin(), host.end(), std::int64_t{0});
    }
  };
  static Held now() { return {memory_use(MemoryKind::device).current, memory_use(MemoryKind::host).current}; }
  void look_behind_call() {
    if (next_ == calls_.size()) {  // another pass
      next_ = 0;
      moments_.clear();
      part_ = {};
    }
    const model::PassPart& part = calls_[next_].part;
    const bool first = next_ == 0 || !(part == part_);
    part_ = part;
    ++next_;
    const Held held = now();
    if (first)
      add(model::text(part), held);
    else if (held.total() >= most_)
      replace(held);
  }
  void add(std::string name, const Held& held) {
    moments_.push_back({std::move(name), held.device, held.host});
    most_ = held.total();
  }
  void replace(const Held& held) {
    moments_.back().device = held.device;
    moments_.back().host = held.host;
    most_ = held.total();
  }

  std::vector<model::UnitCall> calls_;
  model::ParameterAccess<Exec, T>& parameters_;
  std::size_t next_ = 0;
  model::PassPart part_;
  std::vector<prediction::MomentMemory> moments_;
  std::int64_t most_ = 0;
};

}  // namespace annulus::training
