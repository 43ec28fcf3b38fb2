#include <algorithm>
#include <deque>
#include <map>

#include "plan/describe.hpp"
#include "plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

struct PostedEnd {
  End end;
  const Transfer* transfer;
};
struct StreamEnds {
  std::vector<PostedEnd> sends, receives;
};
using Streams = std::map<MessageStream, StreamEnds>;

MessageStream sending(int rank, const Transfer& send) {
  return {rank, send.peer, send.channel};
}

MessageStream receiving(const Scope& scope, int rank, const Transfer& receive) {
  const int from = scope.representative(receive.peer);
  return {from, scope.shift.rank(rank, from - receive.peer), receive.channel};
}

std::string place(const End& end) {
  return fmt::format("rank {}, step {}", end.rank, end.step);
}

/// The messages of a stream, in order.
void compare(const Scope& scope, const MessageStream& stream, const StreamEnds& ends,
             Diagnostics& diagnostics) {
  const auto name = [&] {
    return fmt::format("messages from rank {} to rank {} on channel {}", stream.from, stream.to,
                       name_of(stream.channel));
  };
  const int distance = scope.distance(stream.to);
  const std::size_t common = std::min(ends.sends.size(), ends.receives.size());
  for (std::size_t k = 0; k < common; ++k) {
    const End &sender = ends.sends[k].end, &receiver = ends.receives[k].end;
    const Transfer &send = *ends.sends[k].transfer, &receive = *ends.receives[k].transfer;
    if (send.slice != scope.shift.slice(receive.slice, distance)) {
      diagnostics.add("{}: number {} is sent as {} ({}), but received as {} ({})", name(), k,
                      describe(send.slice), place(sender), describe(receive.slice), place(receiver));
    } else if (send.wire != receive.wire) {
      diagnostics.add("{}: number {}, {}, is sent as {} ({}), but received as {} ({})", name(), k,
                      describe(send.slice), name_of(send.wire), place(sender), name_of(receive.wire),
                      place(receiver));
    }
  }
  for (std::size_t k = common; k < ends.sends.size(); ++k) {
    diagnostics.add("{}: {}: {} has no receive", name(), place(ends.sends[k].end),
                    describe_send(*ends.sends[k].transfer));
  }
  for (std::size_t k = common; k < ends.receives.size(); ++k) {
    diagnostics.add("{}: {}: {} has no send", name(), place(ends.receives[k].end),
                    describe_receive(*ends.receives[k].transfer));
  }
}

}  // namespace

const Transfer& Matching::send(const ExpandedPlan& expanded, int message) const {
  const End& end = messages[static_cast<std::size_t>(message)].sender;
  return expanded.at(end.rank, end.step).sends[static_cast<std::size_t>(end.index)];
}
const Transfer& Matching::receive(const ExpandedPlan& expanded, int message) const {
  const End& end = messages[static_cast<std::size_t>(message)].receiver;
  return expanded.at(end.rank, end.step).receives[static_cast<std::size_t>(end.index)];
}

Matching match(const ExpandedPlan& expanded, Diagnostics& diagnostics) {
  const Scope& scope = expanded.scope;
  Matching matching;
  Streams streams;
  matching.sends.resize(static_cast<std::size_t>(scope.representatives()));
  matching.receives.resize(matching.sends.size());
  for (int rank = 0; rank < scope.representatives(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (int step = 0; step < scope.plan.steps; ++step) {
      const Step& at = expanded.at(rank, step);
      matching.sends[r].emplace_back(at.sends.size(), -1);
      matching.receives[r].emplace_back(at.receives.size(), -1);
      for (int i = 0; const Transfer& send : at.sends)
        streams[sending(rank, send)].sends.push_back({{rank, step, i++}, &send});
      for (int i = 0; const Transfer& receive : at.receives)
        streams[receiving(scope, rank, receive)].receives.push_back({{rank, step, i++}, &receive});
    }
  }
  const auto number = [](auto& numbers, const End& end) -> int& {
    return numbers[static_cast<std::size_t>(end.rank)][static_cast<std::size_t>(end.step)]
                  [static_cast<std::size_t>(end.index)];
  };
  for (const auto& [stream, ends] : streams) {
    compare(scope, stream, ends, diagnostics);
    for (std::size_t k = 0; k < std::min(ends.sends.size(), ends.receives.size()); ++k) {
      const Message message{ends.sends[k].end, ends.receives[k].end};
      number(matching.sends, message.sender) = number(matching.receives, message.receiver) =
          static_cast<int>(matching.messages.size());
      matching.messages.push_back(message);
    }
  }
  return matching;
}

void explain_messages(const Scope& scope, const std::vector<MessageSum>& unanswered,
                      Diagnostics& diagnostics) {
  constexpr int most_senders = 8;  // of so many at a time the messages fit into memory
  std::vector<bool> explained(unanswered.size());
  int senders = 0;
  for (std::size_t rank = 0; rank < unanswered.size() && senders < most_senders; ++rank) {
    explained[rank] = unanswered[rank].contents != 0;
    if (explained[rank]) ++senders;
  }
  const auto wanted = [&](const MessageStream& stream) {
    return explained[static_cast<std::size_t>(stream.from)];
  };
  std::deque<Transfer> transfers;
  Streams streams;
  for (int rank = 0; rank < scope.representatives(); ++rank) {
    for (int number = 0; number < scope.plan.steps; ++number) {
      const Step step = scope.plan.step(rank, number);
      for (int i = 0; const Transfer& send : step.sends) {
        const End end{rank, number, i++};
        if (const MessageStream stream = sending(rank, send); wanted(stream))
          streams[stream].sends.push_back({end, &transfers.emplace_back(send)});
      }
      for (int i = 0; const Transfer& receive : step.receives) {
        const End end{rank, number, i++};
        if (const MessageStream stream = receiving(scope, rank, receive); wanted(stream))
          streams[stream].receives.push_back({end, &transfers.emplace_back(receive)});
      }
    }
  }
  for (const auto& [stream, ends] : streams) compare(scope, stream, ends, diagnostics);
}

}  // namespace annulus::plan::validation
