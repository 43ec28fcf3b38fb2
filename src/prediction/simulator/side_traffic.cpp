#include "prediction/simulator/side_traffic.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

#include "prediction/simulator/side_run.hpp"

namespace annulus::simulator {

double seconds_alone(const SideQueue& queue) {
  double seconds = 0;
  for (const SideFlow& flow : queue) seconds += flow.seconds();
  return seconds;
}

bool SideTraffic::empty() const {
  return std::ranges::all_of(queues, &SideQueue::empty);
}

SideRun::SideRun(Network& network, SideTraffic traffic, int ranks, double begin)
    : network_(network), traffic_(std::move(traffic)), begin_(begin) {
  for (int rank = 0; rank < ranks; ++rank)
    for (int queue = 0; queue < std::ssize(traffic_.queues); ++queue) queues_.push_back({rank, queue});
  for (RankQueue& queue : queues_) start_next(queue, begin);
}

void SideRun::start_next(RankQueue& queue, double now) {
  const SideQueue& flows = traffic_.queues[static_cast<std::size_t>(queue.queue)];
  queue.flow = -1;
  if (queue.next == flows.size()) return;
  queue.flow = network_.start_side(queue.rank, flows[queue.next++], now);
  of_flow_.resize(static_cast<std::size_t>(queue.flow) + 1, -1);
  of_flow_.back() = static_cast<int>(&queue - queues_.data());
  ++running_;
}

bool SideRun::has(int flow) const {
  return flow < std::ssize(of_flow_) && of_flow_[static_cast<std::size_t>(flow)] >= 0;
}

void SideRun::leave(int flow, double now) {
  RankQueue& queue = queues_[static_cast<std::size_t>(of_flow_[static_cast<std::size_t>(flow)])];
  ANNULUS_ASSERT(queue.flow == flow);
  --running_;
  queue.ended = now - begin_;
  start_next(queue, now);
}

SideProgress SideRun::progress(double now) const {
  SideProgress progress;
  progress.left.queues.resize(traffic_.queues.size());
  progress.ended.resize(traffic_.queues.size());
  for (const RankQueue& queue : queues_) {
    const auto index = static_cast<std::size_t>(queue.queue);
    progress.ended[index] = std::max(progress.ended[index], queue.ended);
    if (queue.flow < 0) continue;
    const SideQueue& flows = traffic_.queues[index];
    SideQueue left(flows.begin() + static_cast<std::ptrdiff_t>(queue.next) - 1, flows.end());
    left.front().bytes = network_.remaining(queue.flow, now);
    if (seconds_alone(left) > seconds_alone(progress.left.queues[index]))
      progress.left.queues[index] = std::move(left);
  }
  return progress;
}

SideProgress advance(const SideTraffic& traffic, const Cluster& cluster, double seconds) {
  const Topology one = Topology::uniform(1, 1);  // the others do the same
  Network network(cluster, one, std::nullopt, Network::Host::joined);
  SideRun run(network, traffic, 1);
  double now = 0;
  while (run.under_way()) {
    const Network::Finished left = network.next();
    if (left.time > seconds) {
      now = seconds;
      break;
    }
    now = left.time;
    network.finish(left);
    run.leave(left.flow, now);
  }
  return run.progress(now);
}

}  // namespace annulus::simulator
