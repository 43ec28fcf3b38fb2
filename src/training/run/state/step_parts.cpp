#include "training/run/state/step_parts.hpp"

#include <algorithm>
#include <utility>

namespace annulus::training {

namespace {

using enum StepPart;
constexpr std::pair<std::string_view, StepPart> regions[] = {
    {"annulus::training::plan", plans},
    {"annulus::model::embedding", embedding},
    {"annulus::model::embedding_backward", embedding},
    {"annulus::model::lm_head", lm_head},
    {"annulus::model::attention_inputs", projections},
    {"annulus::model::attention", projections},
    {"annulus::model::attention_backward", projections_backward},
    {"annulus::model::ffn_inputs", feed_forward},
    {"annulus::model::ffn", feed_forward},
    {"annulus::model::ffn_backward", feed_forward_backward},
    {"annulus::model::recompute", recompute},
    {"annulus::sparsity::select", selection},
    {"annulus::sparsity::expand", selection},
    {"annulus::sparsity::SparseAttention::forward", attention},
    {"annulus::sparsity::SparseAttention::recompute", attention_recompute},
    {"annulus::sparsity::SparseAttention::backward", attention_backward},
    {"annulus::sparsity::AttentionAudit::look_at", audit},
    {"annulus::executor::Attention::forward", attention},
    {"annulus::executor::Attention::recompute", attention_recompute},
    {"annulus::executor::Attention::backward", attention_backward},
    {"annulus::parameter_sharding::gather", sharding},
    {"annulus::parameter_sharding::reduce", sharding},
    {"annulus::parameter_sharding::wait", sharding},
    {"annulus::training::reduce_gradients", sharding},
    {"annulus::optimizer::gradient_norm", optimizer},
    {"annulus::optimizer::non_finite", optimizer},
    {"annulus::training::update", optimizer},
};

}  // namespace

int step_part_of(int around, std::string_view region) {
  const auto* const found = std::ranges::find(regions, region, &std::pair<std::string_view, StepPart>::first);
  if (found == std::end(regions)) return around;
  const StepPart part = found->second, outside{static_cast<std::uint8_t>(around)};
  // What is computed again is computed in regions of its own, and attention in those of the forward pass.
  const bool again = outside == recompute || outside == attention_recompute;
  return static_cast<int>(again && part == attention ? attention_recompute : part);
}

}  // namespace annulus::training
