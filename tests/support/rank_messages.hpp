#pragma once

#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "support/error_text.hpp"

namespace annulus::test {

/// What call(communicator) ends with on every rank, ranks as threads: the message of its Error, or "no
/// error".
template <class Call>
std::vector<std::string> messages_of_ranks(const Topology& topology, const Call& call) {
  std::vector<std::string> messages(static_cast<std::size_t>(topology.ranks()));
  comm::run_loopback(topology, [&](comm::Communicator& communicator) {
    messages[static_cast<std::size_t>(communicator.rank())] = error_text([&] { call(communicator); });
  });
  return messages;
}

}  // namespace annulus::test
