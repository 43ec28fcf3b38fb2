#pragma once

#include <vector>

#include "prediction/simulator/network.hpp"
#include "prediction/simulator/side_traffic.hpp"

namespace annulus::simulator {

/// Side traffic of the ranks of a network while time goes on there.
class SideRun {
 public:
  /// The first flow of each queue sets out at `begin`, on each of `ranks` ranks.
  SideRun(Network& network, SideTraffic traffic, int ranks, double begin = 0);

  bool any() const { return !of_flow_.empty(); }
  /// Whether `flow` of the network is one of these.
  bool has(int flow) const;
  /// A flow has ended (Network::finish) at `now`: the next one of its queue sets out.
  void leave(int flow, double now);
  bool under_way() const { return running_ > 0; }
  /// What has happened by `now`. Its times count from the begin.
  SideProgress progress(double now) const;

 private:
  struct RankQueue {
    int rank, queue;
    std::size_t next = 0;  // flow of the queue that comes behind the one under way
    int flow = -1;         // under way; −1: all have ended
    double ended = 0;      // its last flow, counted from the begin
  };
  void start_next(RankQueue& queue, double now);

  Network& network_;
  SideTraffic traffic_;
  double begin_;
  std::vector<RankQueue> queues_;
  std::vector<int> of_flow_;  // index into queues_ of each flow of the network; −1: another's
  int running_ = 0;
};

}  // namespace annulus::simulator
