#include "training/run/sequence_plans.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>

namespace annulus::training {

namespace {

bool has_choice(const Config& config) {
  return config.attention.schedule == simulator::automatic || config.attention.layout == simulator::automatic;
}

}  // namespace

bool SequencePlans::chooses_by_documents(const Config& config) {
  return has_choice(config) && takes_documents_from_data(config.attention.mask);
}

SequencePlans::SequencePlans(const Topology& topology, int rank, const Config& config,
                             const AttentionInputs& inputs)
    : rank_(rank),
      sequences_(config.train.sequences_per_pass),
      schedule_(config.attention.schedule),
      follows_documents_(takes_documents_from_data(config.attention.mask)),
      chosen_(has_choice(config)),
      make_plan_(inputs.make_plan) {
  problem_.topology = topology;
  problem_.heads = config.model.heads;
  problem_.kv_heads = config.model.kv_heads;
  problem_.head_dim = config.model.head_dim;
  problem_.batch = follows_documents_ ? 1 : sequences_;
  problem_.activation = parse_dtype(config.train.dtype, "train.dtype");
  problem_.mask =
      follows_documents_ ? inputs.mask.with_other_documents(inputs.documents, "attention.mask") : inputs.mask;
  const std::string& text = config.attention.mask;
  require(problem_.mask.rule().right == 0 || config.attention.see_targets,
          "attention.mask = '{}' lets a token attend to later ones, which it is to predict: {} "
          "(attention.see_targets = true allows it, for measuring speed)",
          text, text == "full" ? "use causal" : "join causal, as in causal+" + text);
  choose(config, inputs.cluster ? *inputs.cluster : simulator::default_cluster());
  problem_ = plan::arranged_for(schedule_, std::move(problem_), "attention.schedule");
  masks_.assign(static_cast<std::size_t>(follows_documents_ ? sequences_ : 1),
                Masked(problem_.mask, inputs.documents));
}

/// Sets schedule and layout, for the mask that is set.
void SequencePlans::choose(const Config& config, const simulator::Cluster& cluster) {
  const std::string& layout = config.attention.layout;
  if (!chosen_) {
    problem_.layout = Layout::parse(layout, "attention.layout");
    return;
  }
  constexpr std::array passes = {plan::Pass::forward, plan::Pass::backward};
  simulator::Choice choice = simulator::choose(problem_, schedule_, layout, passes, cluster,
                                               {.selected = {config.predicted_density()},
                                                .schedule_field = "attention.schedule",
                                                .layout_field = "attention.layout"});
  schedule_ = std::move(choice.schedule);
  problem_.layout = choice.layout;
}

bool SequencePlans::follow(int sequence, std::span<const std::int64_t> document_starts) {
  if (!follows_documents_) return false;
  Masked& masked = masks_[static_cast<std::size_t>(sequence)];
  if (std::ranges::equal(document_starts, masked.document_starts)) return false;
  masked = Masked(masked.mask.with_other_documents(document_starts, "attention.mask"), document_starts);
  if (sequence == 0) problem_.mask = masked.mask;
  return true;
}

void SequencePlans::recompute_before(std::int64_t position) {
  require(position >= 0 && position <= problem_.mask.tokens(),
          "attention is to be computed again before position {} of a sequence of {} tokens: take a position "
          "in it, or 0 for none",
          position, problem_.mask.tokens());
  require(position == 0 || problem_.mask.rule().right == 0,
          "memory.recompute = 'sequence-selective' computes attention of the earlier positions without the "
          "later ones, which attention.mask = '{}' shows them: use selective or full",
          problem_.mask.to_string());
  before_ = position;
}

plan::Problem SequencePlans::problem_before(const Masked& masked) const {
  plan::Problem problem = problem_;
  problem.mask = masked.mask;
  problem.positions = before_;
  return problem;
}

std::vector<executor::Plans> SequencePlans::make() const {
  std::vector<executor::Plans> plans;
  plan::Problem problem = problem_;
  for (const Masked& masked : masks_) {
    problem.mask = masked.mask;
    plans.push_back({make_plan_(schedule_, problem, plan::Pass::forward),
                     make_plan_(schedule_, problem, plan::Pass::backward)});
    if (before_ > 0)
      plans.back().recompute = make_plan_(schedule_, problem_before(masked), plan::Pass::forward);
  }
  return plans;
}

std::int64_t SequencePlans::pairs() const {
  std::int64_t pairs = 0;
  for (const Masked& masked : masks_) pairs += masked.pairs;
  return pairs * problem_.batch;
}

std::int64_t SequencePlans::pairs_before() const {
  std::int64_t pairs = 0;
  for (const Masked& masked : masks_) {
    const PositionMap queries = Layout().shard(masked.mask.tokens(), 1, 0).slice({0, before_});
    pairs += masked.mask.pairs(queries, queries);  // the mask is causal
  }
  return pairs * problem_.batch;
}

double SequencePlans::imbalance_before() const {
  double most = 1;
  if (before_ == 0) return most;
  for (const Masked& masked : masks_) {
    const plan::Plan plan = make_plan_(schedule_, problem_before(masked), plan::Pass::forward);
    most = std::max(most, plan::worker_imbalance(plan));
  }
  return most;
}

SequencePlans::Masked::Masked(Mask mask, std::span<const std::int64_t> document_starts)
    : mask(std::move(mask)), document_starts(document_starts.begin(), document_starts.end()) {
  const PositionMap whole = Layout().shard(this->mask.tokens(), 1, 0);
  pairs = this->mask.pairs(whole, whole);
}

}  // namespace annulus::training
