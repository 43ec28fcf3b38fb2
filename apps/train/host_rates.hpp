#pragma once

#include <string>

#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::app {

struct HostRates {
  simulator::Cluster cluster;
  std::string source = {};  ///< what was measured, for those who read predictions
};

/// Measures nodes like this machine, whose cores `topology` shares among its ranks: attention, products and
/// memory in the shapes of the configuration, on all threads of this process, in at most two seconds. In a
/// build for GPUs, whose kernels run there, the rates are a guess.
HostRates measure_host(const training::Config& config, const Topology& topology);

}  // namespace annulus::app
