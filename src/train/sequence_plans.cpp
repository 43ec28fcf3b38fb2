#include "train/sequence_plans.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/simulate/choose.hpp>

namespace annulus::train {

namespace {

// One of the terms that '+' joins is `documents` without start offsets.
bool takes_documents_from_data(std::string_view mask) {
  while (true) {
    const auto plus = mask.find('+');
    if (mask.substr(0, plus) == "documents") return true;
    if (plus == std::string_view::npos) return false;
    mask.remove_prefix(plus + 1);
  }
}

bool has_choice(const Config& config) {
  return config.attention.schedule == simulate::automatic || config.attention.layout == simulate::automatic;
}

}  // namespace

bool SequencePlans::chooses_by_documents(const Config& config) {
  return has_choice(config) && takes_documents_from_data(config.attention.mask);
}

SequencePlans::SequencePlans(const Topology& topology, int rank, const Config& config,
                             std::span<const std::int64_t> documents)
    : rank_(rank),
      schedule_(config.attention.schedule),
      mask_text_(config.attention.mask),
      follows_documents_(takes_documents_from_data(mask_text_)),
      chosen_(has_choice(config)),
      starts_(documents.begin(), documents.end()) {
  problem_.topology = topology;
  problem_.heads = config.model.heads;
  problem_.kv_heads = config.model.kv_heads;
  problem_.head_dim = config.model.head_dim;
  problem_.activation = parse_dtype(config.train.dtype, "train.dtype");
  const std::int64_t tokens = config.data.sequence_length;
  Mask mask = follows_documents_ ? Mask::with_documents(mask_text_, tokens, starts_, "attention.mask")
                                 : Mask::parse(mask_text_, tokens, "attention.mask");
  require(mask.rule().right == 0,
          "attention.mask = '{}' lets a token attend to later ones, which it is to predict: {}", mask_text_,
          mask_text_ == "full" ? "use causal" : "join causal, as in causal+" + mask_text_);
  problem_.mask = mask;
  choose(config);
  problem_ = plan::arranged_for(schedule_, std::move(problem_), "attention.schedule");
  set_mask(std::move(mask));
}

/// Sets schedule and layout, for the mask that is set.
void SequencePlans::choose(const Config& config) {
  const std::string& layout = config.attention.layout;
  if (!chosen_) {
    problem_.layout = Layout::parse(layout, "attention.layout");
    return;
  }
  const simulate::Cluster cluster = config.attention.cluster.empty()
                                        ? simulate::default_cluster()
                                        : simulate::read_cluster(config.attention.cluster);
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
  set_mask(Mask::with_documents(mask_text_, problem_.mask.tokens(), starts_, "attention.mask"));
  return true;
}

void SequencePlans::set_mask(Mask mask) {
  problem_.mask = std::move(mask);
  const PositionMap whole = Layout().shard(problem_.mask.tokens(), 1, 0);
  pairs_ = problem_.mask.pairs(whole, whole);
}

plan::Plan SequencePlans::make(plan::Pass pass) const {
  return plan::make_plan(schedule_, problem_, pass, "attention.schedule");
}

}  // namespace annulus::train
