#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "training/data/dataset.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/passes/plan_agreement.hpp"

namespace annulus::training {

/// What plans are made for.
struct PlanOptions {
  int rank = 0;          ///< of the context-parallel group
  bool backward = true;  ///< there are plans of the backward pass
  std::int64_t before =
      0;  ///< of computing attention again before this position (executor::Plans::recompute)
  executor::Prepare prepare = {};  ///< of the attention that runs them; empty: nobody does
};

/// Unmasked (query, key, head) of a rank's local kernels in a call.
struct RankPairs {
  double forward = 0, backward = 0, recompute = 0;
  RankPairs& operator+=(const RankPairs& other);
};

/// Pairs of a rank by the plans for the sequences of a pass, or for one of them.
RankPairs rank_pairs(const executor::Plans& plans, int rank);

/// What attention computes of a sequence under each mask of layers (ResolvedAttention::masks), and by which
/// plans; or of all sequences of a pass, where these have the same masks. Under the layout `balanced` the
/// sequence is cut for it.
class PlannedSequence final : public data::HeldRows {
 public:
  PlannedSequence(const ResolvedAttention& attention, std::vector<Mask> masks,
                  std::span<const std::int64_t> document_starts, const PlanOptions& options);

  const std::vector<std::int64_t>& document_starts() const { return document_starts_; }
  int masks() const { return static_cast<int>(problems_.size()); }
  const plan::Problem& problem(int mask) const { return problems_[static_cast<std::size_t>(mask)]; }
  /// Unmasked (query, key) pairs of one head and one sequence.
  std::int64_t pairs(int mask) const { return pairs_[static_cast<std::size_t>(mask)]; }
  /// How it is dealt out.
  const Layout& layout() const { return problems_.front().layout; }
  /// Seconds that the cut, and what prepare() made, took, without waits for other ranks.
  double seconds_ahead() const { return seconds_ahead_; }

  executor::Plans plans(int mask) const;
  /// The problem of the first positions alone.
  plan::Problem problem_before(int mask) const;

  /// What PlanOptions::prepare, which was given, has made of a mask, now or when the sequence was made.
  struct Prepared {
    std::shared_ptr<const executor::PreparedPlans> plans;
    RankPairs pairs;  ///< of this rank
  };
  Prepared prepare(int mask) const;
  /// Makes them ahead; with `agreement` the ranks agree on them, too.
  void prepare(PlanAgreement* agreement = nullptr);
  /// The ranks have agreed on what prepare(mask) gives.
  executor::Agreed agreed() const { return agreed_; }

 private:
  plan::Plan make_plan(const plan::Problem& problem, plan::Pass pass) const;

  std::string schedule_;
  MakePlan make_plan_;
  PlanOptions options_;
  std::vector<std::int64_t> document_starts_;
  std::vector<plan::Problem> problems_;  // of each mask
  std::vector<std::int64_t> pairs_;      // of each mask
  std::vector<Prepared> prepared_;       // of each mask, once prepare has run
  executor::Agreed agreed_ = executor::Agreed::in_this_call;
  double seconds_ahead_ = 0;
};

/// Unmasked (query, key) pairs of one head in all layers, of a sequence with these masks.
std::int64_t pairs_in_layers(const ResolvedAttention& attention, std::span<const Mask> masks);

/// The masks of the layers for a sequence whose documents start there.
std::vector<Mask> masks_with(const ResolvedAttention& attention,
                             std::span<const std::int64_t> document_starts);

}  // namespace annulus::training
