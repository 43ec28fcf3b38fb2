#pragma once

#include <cstdint>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/period.hpp"
#include "attention/plan/proof.hpp"
#include "attention/plan/validate/diagnostics.hpp"

/// The parts of the validator (plan::violations), one source file each.
namespace annulus::plan::validation {

/// A plan and its representative ranks 0 … n − 1, which stand for all. What rank r does, the ranks r + n, r +
/// 2n, … do with all rank numbers raised by as much (Plan::period). So all stand at the same place, and when
/// a representative rank sends to one that is not, the representative rank in its place receives from one
/// that is not. Numbers of ranks in steps are those of the plan, 0 … ranks − 1.
struct ProofScope {
  ProofScope(const Plan& plan, RankSubset subset);

  const Plan& plan;
  Premises premises;
  RankShift shift;
  int workers = 1;  // threads that share the ranks

  const Problem& problem() const { return plan.problem; }
  int ranks() const { return premises.ranks(); }
  int representatives() const { return premises.representatives; }
  /// Representative rank of a rank, and how far the two are apart.
  int representative(int rank) const { return rank % representatives(); }
  int distance(int rank) const { return rank - representative(rank); }
};

/// Transfers, computes, clears and the step itself.
std::int64_t entries_of(const Step& step);

/// What the steps of all representative ranks show, one rank after the other.
struct ProvedRanks {
  Diagnostics malformed, flow;         // in the order of ranks
  std::vector<MessageSum> unanswered;  // [representative sender]: what it sends less what is received from it
  std::vector<ComputeSum> computed;    // [representative owner of queries]
  std::int64_t entries = 0;            // of all steps
};
ProvedRanks prove_ranks(const ProofScope& scope);

/// A plan with a period repeats itself: steps of ranks in later periods are those of the first, translated.
/// All of them where they are few (`entries`); else those of the second and the last period over all steps,
/// and as many ranks over three steps as can be made in a second or so.
void check_period(const ProofScope& scope, std::int64_t entries, Diagnostics& diagnostics);

/// Every unmasked (query, key, head) is computed exactly once: by the sums where they show it, else by the
/// computes themselves, of so many owners of queries at a time as fit into memory.
void check_coverage(const ProofScope& scope, const std::vector<ComputeSum>& computed,
                    Diagnostics& diagnostics);

/// One side of a message.
struct MessageEnd {
  int rank = 0, step = 0;
  Transfer transfer;
};
struct MatchedMessage {
  MessageEnd sender, receiver;
};

/// The messages that these representative ranks send: sends and receives of each (source, destination,
/// channel), paired in the order in which they are posted. Both ends are representative ranks: where the
/// ranks are not, those that stand for them. Says what has no partner or another one's contents. Throws Error
/// where the messages would take gigabytes.
std::vector<MatchedMessage> match(const ProofScope& scope, const std::vector<bool>& senders,
                                  Diagnostics& diagnostics);

/// Runs all ranks side by side on a back-end that carries out the groups of a rank (a group: the transfers of
/// one step on one channel) one after the other, by step, then channel; one that carries out all groups at
/// the same time cannot get stuck where this one does not. A message completes when both of its ends are
/// being carried out; a rank enters a step when everything that it waits for there has completed. Reports
/// ranks that get stuck.
void check_progress(const ProofScope& scope, const std::vector<MatchedMessage>& messages,
                    Diagnostics& diagnostics);

}  // namespace annulus::plan::validation
