#include <algorithm>
#include <map>

#include "plan/describe.hpp"
#include "plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

struct Ends {
  std::vector<End> sends, receives;
};

const Transfer& send_at(const Script& script, const End& end) {
  return script.at(end.rank, end.step).sends[static_cast<std::size_t>(end.index)];
}
const Transfer& receive_at(const Script& script, const End& end) {
  return script.at(end.rank, end.step).receives[static_cast<std::size_t>(end.index)];
}

std::string place(const End& end) {
  return fmt::format("rank {}, step {}", end.rank, end.step);
}

}  // namespace

const Transfer& Matching::send(const Script& script, int message) const {
  return send_at(script, messages[static_cast<std::size_t>(message)].sender);
}
const Transfer& Matching::receive(const Script& script, int message) const {
  return receive_at(script, messages[static_cast<std::size_t>(message)].receiver);
}

Matching match(const Script& script, Findings& findings) {
  Matching matching;
  std::map<Lane, Ends> lanes;
  matching.sends.resize(static_cast<std::size_t>(script.walked()));
  matching.receives.resize(static_cast<std::size_t>(script.walked()));
  for (int rank = 0; rank < script.walked(); ++rank) {
    for (int step = 0; step < script.plan.steps; ++step) {
      const Step& at = script.at(rank, step);
      matching.sends[static_cast<std::size_t>(rank)].emplace_back(at.sends.size(), -1);
      matching.receives[static_cast<std::size_t>(rank)].emplace_back(at.receives.size(), -1);
      for (int i = 0; i < static_cast<int>(at.sends.size()); ++i) {
        const Transfer& send = at.sends[static_cast<std::size_t>(i)];
        lanes[script.sending(rank, send)].sends.push_back({rank, step, i});
      }
      for (int i = 0; i < static_cast<int>(at.receives.size()); ++i) {
        const Transfer& receive = at.receives[static_cast<std::size_t>(i)];
        lanes[script.receiving(rank, receive)].receives.push_back({rank, step, i});
      }
    }
  }

  for (const auto& [lane, ends] : lanes) {
    const auto name = [&lane = lane] {
      return fmt::format("messages from rank {} to rank {} on channel {}", lane.from, lane.to,
                         name_of(lane.channel));
    };
    const int distance = script.distance(lane.to);
    const std::size_t common = std::min(ends.sends.size(), ends.receives.size());
    for (std::size_t k = 0; k < common; ++k) {
      const End &sender = ends.sends[k], &receiver = ends.receives[k];
      const Transfer &send = send_at(script, sender), &receive = receive_at(script, receiver);
      const int number = static_cast<int>(matching.messages.size());
      matching.messages.push_back({sender, receiver});
      matching.sends[static_cast<std::size_t>(sender.rank)][static_cast<std::size_t>(sender.step)]
                    [static_cast<std::size_t>(sender.index)] = number;
      matching.receives[static_cast<std::size_t>(receiver.rank)][static_cast<std::size_t>(receiver.step)]
                       [static_cast<std::size_t>(receiver.index)] = number;
      if (send.piece != script.translation.piece(receive.piece, distance)) {
        findings.add("{}: number {} is sent as {} ({}), but received as {} ({})", name(), k,
                     describe(send.piece), place(sender), describe(receive.piece), place(receiver));
      } else if (send.wire != receive.wire) {
        findings.add("{}: number {}, {}, is sent as {} ({}), but received as {} ({})", name(), k,
                     describe(send.piece), name_of(send.wire), place(sender), name_of(receive.wire),
                     place(receiver));
      }
    }
    for (std::size_t k = common; k < ends.sends.size(); ++k) {
      findings.add("{}: {}: {} has no receive", name(), place(ends.sends[k]),
                   describe_send(send_at(script, ends.sends[k])));
    }
    for (std::size_t k = common; k < ends.receives.size(); ++k) {
      findings.add("{}: {}: {} has no send", name(), place(ends.receives[k]),
                   describe_receive(receive_at(script, ends.receives[k])));
    }
  }
  return matching;
}

}  // namespace annulus::plan::validation
