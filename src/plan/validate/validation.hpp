#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/plan/period.hpp>
#include <annulus/plan/plan.hpp>

/// The parts of the validator (validate.hpp), one source file each.
namespace annulus::plan::validation {

/// What is wrong with a plan; the first `limit` findings are kept.
class Findings {
 public:
  static constexpr std::size_t limit = 100;

  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    if (messages_.size() < limit) messages_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  bool empty() const { return messages_.empty(); }
  std::vector<std::string> take() { return std::move(messages_); }

 private:
  std::vector<std::string> messages_;
};

/// Messages of one channel from one rank to another. The sender is one that is walked.
struct Lane {
  int from = 0, to = 0;
  Channel channel = Channel::activations;
  friend auto operator<=>(const Lane&, const Lane&) = default;
};

/// A plan with the steps made of the ranks that are walked: 0 … walked − 1, which stand for all. What rank r
/// does, the ranks r + walked, r + 2·walked, … do with all rank numbers raised by as much (Plan::period). So
/// all stand at the same place, and when a walked rank sends to one that is not, the walked rank in its place
/// receives from one that is not. Numbers of ranks in steps are those of the plan, 0 … ranks − 1.
struct Script {
  Script(const Plan& plan, Walk walk);

  const Plan& plan;
  Translation translation;
  std::vector<std::vector<Step>> steps;  // [walked rank][step]
  std::vector<PositionMap> shards;       // [rank]

  const Problem& problem() const { return plan.problem; }
  int ranks() const { return static_cast<int>(shards.size()); }
  int walked() const { return static_cast<int>(steps.size()); }
  /// Rank that is walked for a rank, and how far the two are apart.
  int standing_for(int rank) const { return rank % walked(); }
  int distance(int rank) const { return rank - standing_for(rank); }
  const Step& at(int rank, int step) const {
    return steps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }

  Lane sending(int rank, const Transfer& send) const { return {rank, send.peer, send.channel}; }
  Lane receiving(int rank, const Transfer& receive) const {
    const int from = standing_for(receive.peer);
    return {from, translation.rank(rank, from - receive.peer), receive.channel};
  }
};

/// A plan with a period repeats itself: steps of ranks in later periods are those of the first, translated.
/// All of them where they are few; else those of the second and the last period over all steps, and as many
/// ranks over three steps as can be made in a second or so.
void check_period(const Script& script, Findings& findings);

/// Indices, ranges, and posts and waits of every entry: what the other checks take for granted.
void check_structure(const Script& script, Findings& findings);

/// Every unmasked (query, key, head) is computed exactly once.
void check_coverage(const Script& script, Findings& findings);

/// One end of a message: entry `index` of the sends or receives of a step.
struct End {
  int rank = 0, step = 0, index = 0;
};
struct Message {
  End sender, receiver;
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

/// How a back-end carries out the groups of a rank (a group: the transfers of one step on one channel).
enum class Issue : std::uint8_t {
  independent,  ///< all that are posted, at the same time
  serial,       ///< one after the other, by step, then channel
};

/// Runs all ranks side by side. A message completes when both of its ends are being carried out; a rank
/// enters a step when everything that it waits for there has completed, and `on_step` is then told. Reports
/// ranks that get stuck; true when none does.
bool check_progress(const Script& script, const Matching& matching, Issue issue,
                    const std::function<void(int rank, int step)>& on_step, Findings& findings);

/// Follows the contents of all slots through the plan: what is read is there, nothing is overwritten in use,
/// every contribution comes home exactly once. Also reports when ranks get stuck.
void check_data_flow(const Script& script, const Matching& matching, Findings& findings);

}  // namespace annulus::plan::validation
