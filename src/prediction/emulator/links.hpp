#pragma once

#include <chrono>
#include <memory>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::emulator {

/// The links of a cluster for ranks that are threads of this process (comm::LoopbackOptions::wire): what
/// simulator::simulate predicts with, run in real time by a thread of its own. A message sets out when both
/// ranks have posted it and the one before it, of the same channel and between the same ranks, has left; it
/// shares links as simulator::Network says, completes its send when its last byte has left and its receive a
/// latency later. Bytes arrive late by what the machine needs to wake a thread, and never early.
class EmulatedLinks final : public comm::Wire {
 public:
  /// `topology` of the ranks; the cluster's own does not count. Throws Error when the cluster makes no sense.
  EmulatedLinks(const simulator::Cluster& cluster, const Topology& topology);
  /// What is under way never arrives.
  ~EmulatedLinks() override;

  void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) override;

  /// Every rank has `traffic` on its links beside messages, from `begin` on, or from now where that has
  /// passed. Throws Error where earlier traffic has not ended.
  void begin_traffic(simulator::SideTraffic traffic, std::chrono::steady_clock::time_point begin);
  /// Waits until all of it has ended. Seconds from its begin, by the clock; 0: there was none.
  double wait_for_traffic();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::emulator
