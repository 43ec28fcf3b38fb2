#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/plan/period.hpp>
#include <annulus/plan/plan.hpp>
#include <annulus/plan/proof.hpp>

#include "plan/validate/findings.hpp"

/// The parts of the validator (validate.hpp), one source file each.
namespace annulus::plan::validation {

/// A plan and the ranks of it that are walked: 0 … walked − 1, which stand for all. What rank r does, the
/// ranks r + walked, r + 2·walked, … do with all rank numbers raised by as much (Plan::period). So all stand
/// at the same place, and when a walked rank sends to one that is not, the walked rank in its place receives
/// from one that is not. Numbers of ranks in steps are those of the plan, 0 … ranks − 1.
struct Scope {
  Scope(const Plan& plan, Walk walk);

  const Plan& plan;
  Premises premises;
  Translation translation;
  int workers = 1;  // threads that share the ranks

  const Problem& problem() const { return plan.problem; }
  int ranks() const { return premises.ranks(); }
  int walked() const { return premises.walked; }
  /// Rank that is walked for a rank, and how far the two are apart.
  int standing_for(int rank) const { return rank % walked(); }
  int distance(int rank) const { return rank - standing_for(rank); }
};

/// What the steps of all walked ranks show, one rank after the other.
struct Walked {
  Findings malformed, flow;            // in the order of ranks
  std::vector<MessageSum> unanswered;  // [sender that is walked]: what it sends less what is received from it
  std::vector<ComputeSum> computed;    // [owner of queries that is walked]
  std::int64_t entries = 0;            // of all steps
};
Walked walk_ranks(const Scope& scope);

/// A plan with a period repeats itself: steps of ranks in later periods are those of the first, translated.
/// All of them where they are few (`entries`); else those of the second and the last period over all steps,
/// and as many ranks over three steps as can be made in a second or so.
void check_period(const Scope& scope, std::int64_t entries, Findings& findings);

/// Every unmasked (query, key, head) is computed exactly once: by the sums where they show it, else by the
/// computes themselves, of so many owners of queries at a time as fit into memory.
void check_coverage(const Scope& scope, const std::vector<ComputeSum>& computed, Findings& findings);

/// Steps of all walked ranks, for what must be seen side by side.
struct Script {
  /// Throws Error where the steps would take gigabytes.
  explicit Script(const Scope& scope);

  const Scope& scope;
  std::vector<std::vector<Step>> steps;  // [walked rank][step]

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

/// Messages of one channel from one rank to another. The sender is one that is walked.
struct Lane {
  int from = 0, to = 0;
  Channel channel = Channel::activations;
  friend auto operator<=>(const Lane&, const Lane&) = default;
};

/// Which send meets which receive.
struct Matching {
  std::vector<Message> messages;
  std::vector<std::vector<std::vector<int>>> sends, receives;  // [rank][step][index]: number of the message

  const Transfer& send(const Script& script, int message) const;
  const Transfer& receive(const Script& script, int message) const;
};

/// Pairs the sends and receives of each (source, destination, channel) in the order in which they are posted.
/// Both ends are walked: where the ranks are not, those that stand for them.
/// Only when it finds nothing wrong is the result complete.
Matching match(const Script& script, Findings& findings);

/// What is wrong with the messages that ranks send, where the sums are not zero.
void explain_messages(const Scope& scope, const std::vector<MessageSum>& unanswered, Findings& findings);

/// How a back-end carries out the groups of a rank (a group: the transfers of one step on one channel).
enum class Issue : std::uint8_t {
  independent,  ///< all that are posted, at the same time
  serial,       ///< one after the other, by step, then channel
};

/// Runs all ranks side by side. A message completes when both of its ends are being carried out; a rank
/// enters a step when everything that it waits for there has completed. Reports ranks that get stuck.
void check_progress(const Script& script, const Matching& matching, Issue issue, Findings& findings);

}  // namespace annulus::plan::validation
