#include "training/run/passes/planned_sequence.hpp"

#include <Kokkos_Timer.hpp>

#include <algorithm>
#include <utility>

#include <annulus/attention/sequence/layout.hpp>

namespace annulus::training {

namespace {

std::int64_t pairs_of(const Mask& mask) {
  const PositionMap whole = Layout().shard(mask.tokens(), 1, 0);
  return mask.pairs(whole, whole);
}

}  // namespace

RankPairs rank_pairs(const executor::Plans& plans, int rank) {
  const auto pairs = [rank](const plan::Plan& plan) {
    return double(plan::traffic(plan, rank).pairs) * plan.problem.batch;
  };
  const auto& [forward, backward, recompute] = plans;
  return {pairs(forward), backward ? pairs(*backward) : 0, recompute ? pairs(*recompute) : 0};
}

RankPairs& RankPairs::operator+=(const RankPairs& other) {
  forward += other.forward;
  backward += other.backward;
  recompute += other.recompute;
  return *this;
}

std::int64_t pairs_in_layers(const ResolvedAttention& attention, std::span<const Mask> masks) {
  std::int64_t pairs = 0;
  for (int i = 0; i < std::ssize(masks); ++i)
    pairs += std::ranges::count(attention.mask_of_layer, i) * pairs_of(masks[static_cast<std::size_t>(i)]);
  return pairs;
}

std::vector<Mask> masks_with(const ResolvedAttention& attention,
                             std::span<const std::int64_t> document_starts) {
  std::vector<Mask> masks;
  for (const Mask& mask : attention.masks)
    masks.push_back(mask.with_other_documents(document_starts, "attention.mask"));
  return masks;
}

PlannedSequence::PlannedSequence(const ResolvedAttention& attention, std::vector<Mask> masks,
                                 std::span<const std::int64_t> document_starts, const PlanOptions& options)
    : schedule_(attention.schedule),
      make_plan_(attention.make_plan),
      options_(options),
      document_starts_(document_starts.begin(), document_starts.end()) {
  const Kokkos::Timer timer;
  plan::Problem problem = attention.arranged_for(masks);
  rows_ = problem.owned(options_.rank);
  for (Mask& mask : masks) {
    pairs_.push_back(pairs_of(mask));
    problem.mask = std::move(mask);
    problems_.push_back(problem);
  }
  seconds_ahead_ += timer.seconds();
}

plan::Plan PlannedSequence::make_plan(const plan::Problem& problem, plan::Pass pass) const {
  return make_plan_(schedule_, problem, pass);
}

plan::Problem PlannedSequence::problem_before(int mask) const {
  plan::Problem before = problem(mask);
  before.positions = options_.before;
  return before;
}

executor::Plans PlannedSequence::plans(int mask) const {
  executor::Plans plans{.forward = make_plan(problem(mask), plan::Pass::forward), .backward = std::nullopt};
  if (options_.backward) plans.backward = make_plan(problem(mask), plan::Pass::backward);
  if (options_.before > 0) plans.recompute = make_plan(problem_before(mask), plan::Pass::forward);
  return plans;
}

PlannedSequence::Prepared PlannedSequence::prepare(int mask) const {
  if (!prepared_.empty()) return prepared_[static_cast<std::size_t>(mask)];
  executor::Plans made = plans(mask);
  const RankPairs pairs = rank_pairs(made, options_.rank);
  return {options_.prepare(std::move(made)), pairs};
}

void PlannedSequence::prepare(PlanAgreement* agreement) {
  const Kokkos::Timer timer;
  std::vector<Prepared> made;
  for (int mask = 0; mask < masks(); ++mask) made.push_back(prepare(mask));
  prepared_ = std::move(made);
  seconds_ahead_ += timer.seconds();
  if (agreement == nullptr) return;
  std::vector<std::shared_ptr<const executor::PreparedPlans>> of_masks;
  for (const Prepared& of_mask : prepared_) of_masks.push_back(of_mask.plans);
  agreement->with_others(of_masks);
  agreed_ = executor::Agreed::ahead;
}

}  // namespace annulus::training
