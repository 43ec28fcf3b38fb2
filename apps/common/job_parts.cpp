#include "common/job_parts.hpp"

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/watchdog.hpp"

namespace annulus::app {

comm::Communicator& JobParts::of(int ranks) {
  if (ranks == world_.size()) return world_;
  auto& made = made_[ranks];
  if (!made) made = world_.split(has(ranks) ? 0 : 1, world_.rank());
  return *made;
}

std::int32_t JobParts::end(int ranks, std::int32_t outcome) {
  const Queue queue{HostExec()};
  if (!has(ranks)) {
    const comm::Watchdog::ActivityScope activity(world_.watchdog(), "no part in the case that is running");
    const std::array<comm::Receive, 1> receive{{{&outcome, sizeof outcome, 0}}};
    comm::Request request = world_.exchange(queue, {}, receive);
    while (!request.test()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } else if (world_.rank() == 0 && ranks < world_.size()) {
    std::vector<comm::Send> sends;
    for (int rank = ranks; rank < world_.size(); ++rank) sends.push_back({&outcome, sizeof outcome, rank});
    world_.exchange(queue, sends, {}).wait();
  }
  return outcome;
}

}  // namespace annulus::app
