#pragma once

#include <string>
#include <vector>

#include <annulus/prediction/step/update_memory.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "training/model/pass_parts.hpp"

namespace annulus::training {

/// Takes down what this process holds at the moments of an optimizer step that prediction::update_memory
/// predicts.
class MemoryTrace {
 public:
  /// Into `moments`; null: nowhere.
  explicit MemoryTrace(std::vector<prediction::MomentMemory>* moments) : moments_(moments) {}

  /// Looks behind a call that a part of a pass has made: of each part the most is kept, of the last pass.
  void look_behind_call(const model::PassPart& part) {
    if (moments_ == nullptr) return;
    const std::string moment = model::text(part);
    const bool again = !moments_->empty() && moments_->back().moment == moment;
    if (part.kind == model::PassPart::Kind::embedding && !again) moments_->clear();
    look(moment);
    if (!again) return;
    const auto last = moments_->end() - 1, before = last - 1;
    if (total(*last) >= total(*before)) *before = *last;
    moments_->pop_back();
  }
  /// Looks at a moment outside the passes.
  void look(const std::string& moment) {
    if (moments_ != nullptr)
      moments_->push_back(
          {moment, memory_use(MemoryKind::device).current, memory_use(MemoryKind::host).current});
  }

 private:
  static std::int64_t total(const prediction::MomentMemory& moment) {
    return total_bytes(moment.device) + total_bytes(moment.host);
  }

  std::vector<prediction::MomentMemory>* moments_;
};

}  // namespace annulus::training
