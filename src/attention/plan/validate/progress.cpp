#include <deque>
#include <map>
#include <utility>

#include "attention/plan/text.hpp"
#include "attention/plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

class ProgressCheck {
 public:
  ProgressCheck(const ProofScope& scope, const std::vector<MatchedMessage>& messages)
      : steps_(scope.plan.steps),
        messages_(messages),
        active_ends_(messages.size()),
        ranks_(static_cast<std::size_t>(scope.representatives())) {
    for (std::size_t message = 0; message < messages.size(); ++message) {
      for (const MessageEnd* end : {&messages[message].sender, &messages[message].receiver}) {
        RankProgress& rank = at(end->rank);
        rank.groups[{end->step, end->transfer.channel}].push_back(message);
        rank.waits[end->transfer.wait].push_back(message);
      }
    }
    for (RankProgress& rank : ranks_) rank.group = rank.groups.begin();
  }

  void run(Diagnostics& diagnostics) {
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) awake_.push_back(rank);
    for (; !awake_.empty(); awake_.pop_front()) advance(at(awake_.front()));
    for (int rank = 0; rank < std::ssize(ranks_); ++rank)
      if (at(rank).next_step < steps_) report(rank, diagnostics);
  }

 private:
  using Groups = std::map<std::pair<int, Channel>, std::vector<std::size_t>>;  // by step and channel
  struct RankProgress {
    int next_step = 0;
    std::map<int, std::vector<std::size_t>> waits;  // by step
    Groups groups;
    Groups::const_iterator group;  // the next to complete
    bool started = false;          // it has been
    std::size_t incomplete = 0;    // messages of it
  };

  RankProgress& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool complete(std::size_t message) const { return active_ends_[message] == 2; }

  /// The first message that keeps a rank from entering its next step; null when none does.
  const MatchedMessage* blocker(const RankProgress& rank) const {
    const auto waits = rank.waits.find(rank.next_step);
    if (waits == rank.waits.end()) return nullptr;
    for (const std::size_t message : waits->second)
      if (!complete(message)) return &messages_[message];
    return nullptr;
  }

  void advance(RankProgress& rank) {
    while (true) {
      while (rank.next_step < steps_ && blocker(rank) == nullptr) ++rank.next_step;
      if (rank.started && rank.incomplete == 0) {
        ++rank.group;
        rank.started = false;
      }
      if (rank.started || rank.group == rank.groups.end() || rank.group->first.first >= rank.next_step)
        return;
      rank.started = true;
      rank.incomplete = rank.group->second.size();
      for (const std::size_t message : rank.group->second) {
        if (++active_ends_[message] < 2) continue;
        for (const MessageEnd* end : {&messages_[message].sender, &messages_[message].receiver}) {
          --at(end->rank).incomplete;
          awake_.push_back(end->rank);
        }
      }
    }
  }

  void report(int number, Diagnostics& diagnostics) {
    const RankProgress& rank = at(number);
    const MatchedMessage& message = *blocker(rank);
    const bool receiving = message.receiver.rank == number;
    const MessageEnd &here = receiving ? message.receiver : message.sender,
                     &there = receiving ? message.sender : message.receiver;
    diagnostics.add("deadlock: rank {} waits in step {} for '{}' (posted in step {}), {}; rank {} {}", number,
                    rank.next_step,
                    receiving ? describe_receive(here.transfer) : describe_send(here.transfer), here.step,
                    held_up(rank), there.rank, held_up(at(there.rank)));
  }

  static std::string held_up(const RankProgress& rank) {
    if (!rank.started) return fmt::format("waits in step {} with nothing posted", rank.next_step);
    const auto [step, channel] = rank.group->first;
    return fmt::format("is held up in its group of step {} on channel {}", step, name_of(channel));
  }

  int steps_;
  const std::vector<MatchedMessage>& messages_;
  std::vector<int> active_ends_;  // of each message: those that are being carried out
  std::vector<RankProgress> ranks_;
  std::deque<int> awake_;  // ranks that may be able to go on
};

}  // namespace

void check_progress(const ProofScope& scope, const std::vector<MatchedMessage>& messages,
                    Diagnostics& diagnostics) {
  ProgressCheck(scope, messages).run(diagnostics);
}

}  // namespace annulus::plan::validation
