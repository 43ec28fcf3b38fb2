#pragma once

#include <string>
#include <utility>
#include <vector>

#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/prediction/step/update_memory.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "training/model/parameter_access.hpp"
#include "training/model/pass_parts.hpp"

namespace annulus::training {

/// What this process holds at the moments of an optimizer step that prediction::update_memory predicts: it
/// looks behind each call of the model to its parameters, and keeps of every part of a pass the most.
template <class Exec, class T>
class MemoryTrace final : public model::ParameterAccess<Exec, T> {
 public:
  /// Hands calls of a model of `config` on to `parameters`, which outlives this.
  MemoryTrace(const model::Config& config, model::ParameterAccess<Exec, T>& parameters)
      : parameters_(parameters) {
    for (const model::PassPart& part : model::pass_parts(config))
      parts_.insert(parts_.end(), part.calls.size(), model::text(part));
  }

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
  void look(const std::string& moment) {
    moments_.push_back(
        {moment, memory_use(MemoryKind::device).current, memory_use(MemoryKind::host).current});
  }
  /// Of the last pass, and behind it.
  std::vector<prediction::MomentMemory> take() { return std::exchange(moments_, {}); }

 private:
  void look_behind_call() {
    if (next_ == parts_.size()) {  // another pass
      next_ = 0;
      moments_.clear();
    }
    look(parts_[next_++]);
    if (moments_.size() < 2) return;
    const auto last = moments_.end() - 1, before = last - 1;
    if (last->moment != before->moment) return;
    if (total(*last) >= total(*before)) *before = *last;
    moments_.pop_back();
  }
  static std::int64_t total(const prediction::MomentMemory& moment) {
    return total_bytes(moment.device) + total_bytes(moment.host);
  }

  std::vector<std::string> parts_;  // that make the calls
  model::ParameterAccess<Exec, T>& parameters_;
  std::size_t next_ = 0;
  std::vector<prediction::MomentMemory> moments_;
};

}  // namespace annulus::training
