#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/plan/period.hpp>
#include <annulus/plan/plan.hpp>
#include <annulus/plan/proof.hpp>

#include "plan/validate/diagnostics.hpp"

/// The parts of the validator (validate.hpp), one source file each.
namespace annulus::plan::validation {

/// A plan and its representative ranks 0 … n − 1, which stand for all. What rank r does, the ranks r + n, r +
/// 2n, … do with all rank numbers raised by as much (Plan::period). So all stand at the same place, and when
/// a representative rank sends to one that is not, the representative rank in its place receives from one
/// that is not. Numbers of ranks in steps are those of the plan, 0 … ranks − 1.
struct Scope {
  Scope(const Plan& plan, RankSubset subset);

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

/// What the steps of all representative ranks show, one rank after the other.
struct ProvedRanks {
  Diagnostics malformed, flow;         // in the order of ranks
  std::vector<MessageSum> unanswered;  // [representative sender]: what it sends less what is received from it
  std::vector<ComputeSum> computed;    // [representative owner of queries]
  std::int64_t entries = 0;            // of all steps
};
ProvedRanks prove_ranks(const Scope& scope);

/// A plan with a period repeats itself: steps of ranks in later periods are those of the first, translated.
/// All of them where they are few (`entries`); else those of the second and the last period over all steps,
/// and as many ranks over three steps as can be made in a second or so.
void check_period(const Scope& scope, std::int64_t entries, Diagnostics& diagnostics);

/// Every unmasked (query, key, head) is computed exactly once: by the sums where they show it, else by the
/// computes themselves, of so many owners of queries at a time as fit into memory.
void check_coverage(const Scope& scope, const std::vector<ComputeSum>& computed, Diagnostics& diagnostics);

/// Steps of all representative ranks, for what must be seen side by side.
struct ExpandedPlan {
  /// Throws Error where the steps would take gigabytes.
  explicit ExpandedPlan(const Scope& scope);

  const Scope& scope;
  std::vector<std::vector<Step>> steps;  // [representative rank][step]

  const Step& at(int rank, int step) const {
    return steps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }
};

/// One end of a message: entry `index` of the sends or receives of a step.
struct End {
  int rank = 0, step = 0, index = 0;
};
struct Message {
  End sender, receiver;
};

/// Messages of one channel from one rank to another. The sender is a representative rank.
struct MessageStream {
  int from = 0, to = 0;
  Channel channel = Channel::activations;
  friend auto operator<=>(const MessageStream&, const MessageStream&) = default;
};

/// Which send meets which receive.
struct Matching {
  std::vector<Message> messages;
  std::vector<std::vector<std::vector<int>>> sends, receives;  // [rank][step][index]: number of the message

  const Transfer& send(const ExpandedPlan& expanded, int message) const;
  const Transfer& receive(const ExpandedPlan& expanded, int message) const;
};

/// Pairs the sends and receives of each (source, destination, channel) in the order in which they are posted.
/// Both ends are representative ranks: where the ranks are not, those that stand for them.
/// Only when it finds nothing wrong is the result complete.
Matching match(const ExpandedPlan& expanded, Diagnostics& diagnostics);

/// What is wrong with the messages that ranks send, where the sums are not zero.
void explain_messages(const Scope& scope, const std::vector<MessageSum>& unanswered,
                      Diagnostics& diagnostics);

/// How a back-end carries out the groups of a rank (a group: the transfers of one step on one channel).
enum class Issue : std::uint8_t {
  independent,  ///< all that are posted, at the same time
  serial,       ///< one after the other, by step, then channel
};

/// Runs all ranks side by side. A message completes when both of its ends are being carried out; a rank
/// enters a step when everything that it waits for there has completed. Reports ranks that get stuck.
void check_progress(const ExpandedPlan& expanded, const Matching& matching, Issue issue,
                    Diagnostics& diagnostics);

}  // namespace annulus::plan::validation
