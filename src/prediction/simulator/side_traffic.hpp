#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::simulator {

/// A flow of every rank beside a plan: its part of a collective in which all ranks take part alike, or a copy
/// to or from its host. It loads the ports of its rank in both directions (of a copy: in one), as those of
/// other ranks do theirs.
struct SideFlow {
  enum class Way : std::uint8_t { intra_node, inter_node, to_host, from_host };
  Way way = Way::intra_node;
  double bytes = 0;  ///< that a rank sends, and receives
  double rate = 0;   ///< bytes per second that it has at most, and where it is alone
  int messages = 1;  ///< to, and from, so many ranks at the same time; each has one share of a port

  double seconds() const { return bytes / rate; }  ///< alone
};

/// One after the other.
using SideQueue = std::vector<SideFlow>;

/// Seconds of a queue that has the links for itself.
double seconds_alone(const SideQueue& queue);

/// What a rank has on its links beside a plan: queues that go at the same time, alike on all ranks.
struct SideTraffic {
  std::vector<SideQueue> queues;
  bool empty() const;
};

/// What is left of side traffic after some time, on the rank that is furthest behind.
struct SideProgress {
  SideTraffic left;
  std::vector<double> ended;  ///< of each queue: seconds until its last flow ended; 0: it had none
};
/// Side traffic for `seconds` in which nothing else travels; with infinity until all has ended.
SideProgress advance(const SideTraffic& traffic, const Cluster& cluster,
                     double seconds = std::numeric_limits<double>::infinity());

/// A plan beside which all ranks have `traffic` on the links, from its begin on.
struct PlanBeside {
  Simulation simulation;  ///< as simulate() with Detail::times
  SideTraffic left;       ///< what has not ended when the last rank is done
  /// Seconds until all of the traffic has ended; what is left has the links for itself.
  double traffic_ended = 0;
};
/// As simulate(): flows of the plan and of `traffic` share ports. Host copies and messages between nodes
/// share what joins a GPU with both (PCIe): in each direction the faster of the two rates, so that neither is
/// slower alone than its own. Without traffic the result is that of simulate().
PlanBeside simulate_beside(const plan::Plan& plan, const Cluster& cluster, const Selected& selected,
                           const SideTraffic& traffic);

}  // namespace annulus::simulator
