#include "train/sequence_plans.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/simulate/choose.hpp>

namespace annulus::train {

namespace {

bool has_choice(const Config& config) {
  return config.attention.schedule == simulate::automatic || config.attention.layout == simulate::automatic;
}

}  // namespace

bool SequencePlans::chooses_by_documents(const Config& config) {
  return has_choice(config) && takes_documents_from_data(config.attention.mask);
}

SequencePlans::SequencePlans(const Topology& topology, int rank, const Config& config,
                             const AttentionInputs& inputs)
    : rank_(rank),
      schedule_(config.attention.schedule),
      follows_documents_(takes_documents_from_data(config.attention.mask)),
      chosen_(has_choice(config)),
      starts_(inputs.documents),
      make_plan_(inputs.make_plan) {
  problem_.topology = topology;
  problem_.heads = config.model.heads;
  problem_.kv_heads = config.model.kv_heads;
  problem_.head_dim = config.model.head_dim;
  problem_.activation = parse_dtype(config.train.dtype, "train.dtype");
  Mask mask = follows_documents_ ? inputs.mask.with_other_documents(starts_, "attention.mask") : inputs.mask;
  const std::string& text = config.attention.mask;
  require(mask.rule().right == 0,
          "attention.mask = '{}' lets a token attend to later ones, which it is to predict: {}", text,
          text == "full" ? "use causal" : "join causal, as in causal+" + text);
  problem_.mask = mask;
  choose(config, inputs.cluster ? *inputs.cluster : simulate::default_cluster());
  problem_ = plan::arranged_for(schedule_, std::move(problem_), "attention.schedule");
  set_mask(std::move(mask));
}

/// Sets schedule and layout, for the mask that is set.
void SequencePlans::choose(const Config& config, const simulate::Cluster& cluster) {
  const std::string& layout = config.attention.layout;
  if (!chosen_) {
    problem_.layout = Layout::parse(layout, "attention.layout");
    return;
  }
  constexpr std::array passes = {plan::Pass::forward, plan::Pass::backward};
  simulate::Choice choice =
      simulate::choose(problem_, schedule_, layout, passes, cluster,
                       {.schedule_field = "attention.schedule", .layout_field = "attention.layout"});
  schedule_ = std::move(choice.schedule);
  problem_.layout = choice.layout;
}

bool SequencePlans::follow(std::span<const std::int64_t> document_starts) {
  if (!follows_documents_ || std::ranges::equal(document_starts, starts_)) return false;
  starts_.assign(document_starts.begin(), document_starts.end());
  set_mask(problem_.mask.with_other_documents(starts_, "attention.mask"));
  return true;
}

void SequencePlans::set_mask(Mask mask) {
  problem_.mask = std::move(mask);
  const PositionMap whole = Layout().shard(problem_.mask.tokens(), 1, 0);
  pairs_ = problem_.mask.pairs(whole, whole);
}

plan::Plan SequencePlans::make(plan::Pass pass) const {
  return make_plan_(schedule_, problem_, pass);
}

}  // namespace annulus::train
