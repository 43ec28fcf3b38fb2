#pragma once

#include <filesystem>
#include <string>

#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "options/shared.hpp"

namespace annulus::options {

/// A cluster that need not be there, and the ranks on it.
struct ClusterOptions {
  int ranks = 0;                    ///< 0: those of the cluster file, else 8
  int ranks_per_node = 0;           ///< 0: those of the cluster file, else 8
  std::filesystem::path file = {};  ///< the cluster file; empty: default_cluster
};

/// Declares an option for each of its members.
void add_cluster(SharedOptions& options, ClusterOptions& cluster);

/// Throws Error as simulator::read_cluster does.
simulator::Cluster cluster_of(const ClusterOptions& options);

/// Whose rates of links and kernels cluster_of returns: for those who read predictions.
std::string rates_text(const ClusterOptions& options, const simulator::Cluster& cluster);

/// Where the ranks sit on `cluster`, which cluster_of has returned. Throws Error naming the option.
Topology topology_of(const ClusterOptions& options, const simulator::Cluster& cluster);

}  // namespace annulus::options
