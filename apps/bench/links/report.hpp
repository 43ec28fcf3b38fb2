#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>

#include "prediction/measurement/cluster.hpp"

namespace annulus::bench {

/// What `annulus-bench links` has found.
struct LinksReport {
  Topology topology;
  std::vector<std::string> hosts;          ///< of each rank
  std::string transport, execution_space;  ///< what moved the messages, what computed
  int threads = 1;                         ///< of a rank
  std::string base;                        ///< file of the numbers that were not measured; empty: defaults
  measurement::Measurements measured;
  measurement::MeasuredCluster result;
};

/// A table for each class of link, those of kernels and products, what was fitted to links, and notes.
std::string to_table(const LinksReport& report);

/// Where the numbers of the cluster file come from.
simulator::ClusterComments comments(const LinksReport& report);

/// Everything, with every point.
nlohmann::json to_json(const LinksReport& report);

}  // namespace annulus::bench
