#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace annulus::training {

/// What an optimizer step spends its time on (train.parts_every).
enum class StepPart : std::uint8_t {
  other,
  data,
  plans,
  embedding,
  projections,
  feed_forward,
  selection,
  attention,
  lm_head,
  attention_recompute,
  recompute,
  attention_backward,
  projections_backward,
  feed_forward_backward,
  sharding,
  optimizer,
  audit,
};

/// Keys of the parts in metrics.jsonl, in the order of StepPart.
inline constexpr std::array step_part_names = {"other",
                                               "data",
                                               "plans",
                                               "embedding",
                                               "projections",
                                               "feed_forward",
                                               "selection",
                                               "attention",
                                               "lm_head",
                                               "attention_recompute",
                                               "recompute",
                                               "attention_backward",
                                               "projections_backward",
                                               "feed_forward_backward",
                                               "sharding",
                                               "optimizer",
                                               "audit"};
static_assert(step_part_names.size() == static_cast<std::size_t>(StepPart::audit) + 1);

/// RegionTimes::PartOf of the regions of a step.
int step_part_of(int around, std::string_view region);

}  // namespace annulus::training
