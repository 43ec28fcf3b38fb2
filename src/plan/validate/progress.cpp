#include <deque>

#include "plan/describe.hpp"
#include "plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// Transfers of one rank and step on one channel.
struct Group {
  int step = 0;
  Channel channel = Channel::activations;
  std::vector<int> messages;
  int incomplete = 0;
};

class Progress {
 public:
  Progress(const ExpandedPlan& expanded, const Matching& matching, Issue issue)
      : expanded_(expanded),
        matching_(matching),
        issue_(issue),
        ranks_(expanded.steps.size()),
        messages_(matching.messages.size()) {
    for (auto& rank : ranks_) rank.waits.resize(static_cast<std::size_t>(expanded.scope.plan.steps));
    for (int message = 0; message < static_cast<int>(messages_.size()); ++message) {
      const Message& ends = matching.messages[static_cast<std::size_t>(message)];
      waits(ends.sender.rank, matching.send(expanded, message).wait).push_back(message);
      waits(ends.receiver.rank, matching.receive(expanded, message).wait).push_back(message);
    }
  }

  void run(Diagnostics& diagnostics) {
    for (int rank = 0; rank < expanded_.scope.representatives(); ++rank) awake_.push_back(rank);
    while (!awake_.empty()) {
      const int rank = awake_.front();
      awake_.pop_front();
      advance(rank);
    }
    for (int rank = 0; rank < expanded_.scope.representatives(); ++rank) {
      if (ranks_[static_cast<std::size_t>(rank)].next_step == expanded_.scope.plan.steps) continue;
      report(rank, diagnostics);
    }
  }

 private:
  struct RankState {
    int next_step = 0;
    std::vector<std::vector<int>> waits;  // [step]: messages
    std::deque<Group> groups;             // serial issue: posted, not completed; the first one is carried out
  };
  struct MessageState {
    int active_ends = 0;  // being carried out
    bool complete() const { return active_ends == 2; }
  };

  std::vector<int>& waits(int rank, int step) {
    return ranks_[static_cast<std::size_t>(rank)].waits[static_cast<std::size_t>(step)];
  }
  MessageState& state(int message) { return messages_[static_cast<std::size_t>(message)]; }

  /// First message that keeps a rank from entering its next step; −1 when none does.
  int blocker(int rank) {
    for (const int message : waits(rank, ranks_[static_cast<std::size_t>(rank)].next_step)) {
      if (!state(message).complete()) return message;
    }
    return -1;
  }

  void advance(int rank) {
    RankState& self = ranks_[static_cast<std::size_t>(rank)];
    while (self.next_step < expanded_.scope.plan.steps && blocker(rank) < 0) {
      post(rank, self.next_step++);
    }
  }

  void post(int rank, int step) {
    const Step& at = expanded_.at(rank, step);
    const auto& sends = matching_.sends[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
    const auto& receives = matching_.receives[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
    auto& groups = ranks_[static_cast<std::size_t>(rank)].groups;
    for (int c = 0; c < channel_count; ++c) {
      Group group{step, static_cast<Channel>(c), {}, 0};
      for (std::size_t i = 0; i < sends.size(); ++i) {
        if (at.sends[i].channel == group.channel) group.messages.push_back(sends[i]);
      }
      for (std::size_t i = 0; i < receives.size(); ++i) {
        if (at.receives[i].channel == group.channel) group.messages.push_back(receives[i]);
      }
      group.incomplete = static_cast<int>(group.messages.size());
      if (group.messages.empty()) continue;
      if (issue_ == Issue::independent) {
        start(group);
      } else {
        groups.push_back(std::move(group));
        if (groups.size() == 1) starting_.push_back(rank);
      }
    }
    while (!starting_.empty()) {
      const int starter = starting_.front();
      starting_.pop_front();
      const Group first = ranks_[static_cast<std::size_t>(starter)].groups.front();
      start(first);
    }
  }

  void start(const Group& group) {
    for (const int message : group.messages) {
      if (++state(message).active_ends < 2) continue;
      const Message& ends = matching_.messages[static_cast<std::size_t>(message)];
      for (const End& end : {ends.sender, ends.receiver}) {
        awake_.push_back(end.rank);
        if (issue_ == Issue::serial) finish_one(end.rank);
      }
    }
  }

  /// One message of the group that a rank carries out has completed; after the last one the next group
  /// starts.
  void finish_one(int rank) {
    auto& groups = ranks_[static_cast<std::size_t>(rank)].groups;
    if (--groups.front().incomplete > 0) return;
    groups.pop_front();
    if (!groups.empty()) starting_.push_back(rank);
  }

  void report(int rank, Diagnostics& diagnostics) {
    const int step = ranks_[static_cast<std::size_t>(rank)].next_step, message = blocker(rank);
    const Message& ends = matching_.messages[static_cast<std::size_t>(message)];
    const bool receiving = ends.receiver.rank == rank;
    const int peer = receiving ? ends.sender.rank : ends.receiver.rank;
    const std::string what = receiving ? describe_receive(matching_.receive(expanded_, message))
                                       : describe_send(matching_.send(expanded_, message));
    const int posted = (receiving ? ends.receiver : ends.sender).step;
    const int partner = (receiving ? ends.sender : ends.receiver).step;
    if (issue_ == Issue::independent) {
      diagnostics.add(
          "deadlock: rank {} waits in step {} for '{}' (posted in step {}), which rank {} posts in step {}, "
          "but it waits itself in step {}",
          rank, step, what, posted, peer, partner, ranks_[static_cast<std::size_t>(peer)].next_step);
    } else {
      diagnostics.add(
          "deadlock when groups run one after another: rank {} waits in step {} for '{}' (posted in step "
          "{}), "
          "{}; rank {} {}",
          rank, step, what, posted, head(rank), peer, head(peer));
    }
  }

  std::string head(int rank) {
    const auto& groups = ranks_[static_cast<std::size_t>(rank)].groups;
    if (groups.empty()) return "has nothing posted";
    return fmt::format("is held up in its group of step {} on channel {}", groups.front().step,
                       name_of(groups.front().channel));
  }

  const ExpandedPlan& expanded_;
  const Matching& matching_;
  Issue issue_;
  std::vector<RankState> ranks_;
  std::vector<MessageState> messages_;
  std::deque<int> awake_;     // ranks that may be able to enter a step
  std::deque<int> starting_;  // serial issue: ranks whose first group is to be started
};

}  // namespace

void check_progress(const ExpandedPlan& expanded, const Matching& matching, Issue issue,
                    Diagnostics& diagnostics) {
  Progress(expanded, matching, issue).run(diagnostics);
}

}  // namespace annulus::plan::validation
