#include <algorithm>
#include <map>
#include <tuple>

#include <annulus/base/error.hpp>

#include "attention/plan/text.hpp"
#include "attention/plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// Messages of one channel from one rank to another. The sender is a representative rank.
using Stream = std::tuple<int, int, Channel>;
struct Ends {
  std::vector<MessageEnd> sends, receives;
};

std::string place(const MessageEnd& end) {
  return fmt::format("rank {}, step {}", end.rank, end.step);
}

/// The messages of a stream, in order.
void compare(const ProofScope& scope, const Stream& stream, const Ends& ends, Diagnostics& diagnostics) {
  const auto [from, to, channel] = stream;
  const std::string name =
      fmt::format("messages from rank {} to rank {} on channel {}", from, to, name_of(channel));
  const std::size_t common = std::min(ends.sends.size(), ends.receives.size());
  for (std::size_t k = 0; k < common; ++k) {
    const MessageEnd &sender = ends.sends[k], &receiver = ends.receives[k];
    const Transfer &send = sender.transfer, &receive = receiver.transfer;
    if (send.slice != scope.shift.slice(receive.slice, scope.distance(to))) {
      diagnostics.add("{}: number {} is sent as {} ({}), but received as {} ({})", name, k,
                      describe(send.slice), place(sender), describe(receive.slice), place(receiver));
    } else if (send.wire != receive.wire) {
      diagnostics.add("{}: number {}, {}, is sent as {} ({}), but received as {} ({})", name, k,
                      describe(send.slice), name_of(send.wire), place(sender), name_of(receive.wire),
                      place(receiver));
    }
  }
  for (std::size_t k = common; k < ends.sends.size(); ++k)
    diagnostics.add("{}: {}: {} has no receive", name, place(ends.sends[k]),
                    describe_send(ends.sends[k].transfer));
  for (std::size_t k = common; k < ends.receives.size(); ++k)
    diagnostics.add("{}: {}: {} has no send", name, place(ends.receives[k]),
                    describe_receive(ends.receives[k].transfer));
}

}  // namespace

std::vector<MatchedMessage> match(const ProofScope& scope, const std::vector<bool>& senders,
                                  Diagnostics& diagnostics) {
  constexpr int most_ends = 4'000'000;  // some 1.7 GB
  const Plan& plan = scope.plan;
  std::map<Stream, Ends> streams;
  int ends_kept = 0;
  const auto keep = [&](const Stream& stream, std::vector<MessageEnd> Ends::*side, const MessageEnd& end) {
    if (!senders[static_cast<std::size_t>(std::get<0>(stream))]) return;
    require(++ends_kept <= most_ends,
            "plan '{}' ({}): {} steps on each of {} ranks are too many to see side by side, which is "
            "needed where ranks post the two ends of a message in different steps: post them in the same "
            "step, or prove the schedule on fewer ranks",
            plan.schedule, plan.pass_text(), plan.steps, scope.representatives());
    (streams[stream].*side).push_back(end);
  };
  for (int rank = 0; rank < scope.representatives(); ++rank) {
    for (int number = 0; number < plan.steps; ++number) {
      const Step step = plan.step(rank, number);
      for (const Transfer& send : step.sends)
        keep({rank, send.peer, send.channel}, &Ends::sends, {rank, number, send});
      for (const Transfer& receive : step.receives) {
        const int from = scope.representative(receive.peer);
        keep({from, scope.shift.rank(rank, from - receive.peer), receive.channel}, &Ends::receives,
             {rank, number, receive});
      }
    }
  }
  std::vector<MatchedMessage> messages;
  for (const auto& [stream, ends] : streams) {
    compare(scope, stream, ends, diagnostics);
    for (std::size_t k = 0; k < std::min(ends.sends.size(), ends.receives.size()); ++k)
      messages.push_back({ends.sends[k], ends.receives[k]});
  }
  return messages;
}

}  // namespace annulus::plan::validation
