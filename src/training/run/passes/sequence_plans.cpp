#include "training/run/passes/sequence_plans.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::training {

SequencePlans::SequencePlans(int rank, ResolvedAttention attention, Passes passes)
    : rank_(rank), passes_(passes), attention_(std::move(attention)) {
  for (const Mask& mask : attention_.masks)
    masks_.emplace_back(static_cast<std::size_t>(attention_.follows_documents ? attention_.sequences : 1),
                        Masked(mask, attention_.documents));
}

bool SequencePlans::follow(int sequence, std::span<const std::int64_t> document_starts) {
  if (!attention_.follows_documents) return false;
  const auto of_sequence = static_cast<std::size_t>(sequence);
  if (std::ranges::equal(document_starts, masks_.front()[of_sequence].document_starts)) return false;
  for (std::vector<Masked>& of_mask : masks_) {
    Masked& masked = of_mask[of_sequence];
    masked = Masked(masked.mask.with_other_documents(document_starts, "attention.mask"), document_starts);
  }
  if (sequence == 0) {
    for (std::size_t i = 0; i < masks_.size(); ++i) attention_.masks[i] = masks_[i].front().mask;
    attention_.problem.mask = attention_.masks.front();
  }
  return true;
}

void SequencePlans::recompute_before(std::int64_t position) {
  require(position >= 0 && position <= problem().mask.tokens(),
          "attention is to be computed again before position {} of a sequence of {} tokens: take a position "
          "in it, or 0 for none",
          position, problem().mask.tokens());
  require(position == 0 || problem().mask.rule().right == 0,
          "memory.recompute = 'sequence-selective' computes attention of the earlier positions without the "
          "later ones, which attention.mask = '{}' shows them: use selective or full",
          problem().mask.to_string());
  before_ = position;
}

plan::Problem SequencePlans::problem_before(const Masked& masked) const {
  plan::Problem problem = attention_.problem;
  problem.mask = masked.mask;
  problem.positions = before_;
  return problem;
}

std::vector<std::vector<executor::Plans>> SequencePlans::make() const {
  std::vector<std::vector<executor::Plans>> all;
  plan::Problem problem = attention_.problem;
  for (const std::vector<Masked>& of_mask : masks_) {
    std::vector<executor::Plans>& plans = all.emplace_back();
    for (const Masked& masked : of_mask) {
      problem.mask = masked.mask;
      plans.push_back({.forward = make_plan(problem, plan::Pass::forward), .backward = std::nullopt});
      if (passes_ == Passes::both) plans.back().backward = make_plan(problem, plan::Pass::backward);
      if (before_ > 0) plans.back().recompute = make_plan(problem_before(masked), plan::Pass::forward);
    }
  }
  return all;
}

std::int64_t SequencePlans::pairs(int mask) const {
  std::int64_t pairs = 0;
  for (const Masked& masked : masks_[static_cast<std::size_t>(mask)]) pairs += masked.pairs;
  return pairs * problem().batch;
}

double SequencePlans::pairs() const {
  if (masks_.size() == 1) return static_cast<double>(pairs(0));
  double sum = 0;
  for (const int mask : attention_.mask_of_layer) sum += static_cast<double>(pairs(mask));
  return sum / static_cast<double>(attention_.mask_of_layer.size());
}

std::int64_t SequencePlans::pairs_before(int mask) const {
  std::int64_t pairs = 0;
  for (const Masked& masked : masks_[static_cast<std::size_t>(mask)]) {
    const PositionMap queries = Layout().shard(masked.mask.tokens(), 1, 0).slice({0, before_});
    pairs += masked.mask.pairs(queries, queries);  // the mask is causal
  }
  return pairs * problem().batch;
}

double SequencePlans::imbalance_before() const {
  double most = 1;
  if (before_ == 0) return most;
  for (const std::vector<Masked>& of_mask : masks_)
    for (const Masked& masked : of_mask) {
      const plan::Plan plan = make_plan(problem_before(masked), plan::Pass::forward);
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
