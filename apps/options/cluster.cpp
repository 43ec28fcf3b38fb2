#include "options/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <annulus/base/error.hpp>

namespace annulus::options {

void add_cluster(SharedOptions& options, ClusterOptions& cluster) {
  options.add(Shared::ranks_of_cluster, cluster.ranks);
  options.add(Shared::ranks_per_node_of_cluster, cluster.ranks_per_node);
  options.add(Shared::cluster, cluster.file);
}

simulator::Cluster cluster_of(const ClusterOptions& o) {
  return o.file.empty() ? simulator::default_cluster() : simulator::read_cluster(o.file);
}

std::string rates_text(const ClusterOptions& o, const simulator::Cluster& cluster) {
  return o.file.empty() ? fmt::format("{} (--cluster FILE names another)", simulator::default_cluster_text)
                        : simulator::rates_text(cluster, o.file);
}

Topology topology_of(const ClusterOptions& o, const simulator::Cluster& cluster) {
  constexpr int default_ranks = 8;
  const auto& file = cluster.topology;
  const int ranks = o.ranks > 0 ? o.ranks : file ? file->ranks() : default_ranks;
  if (o.ranks_per_node > 0) return Topology::uniform(ranks, o.ranks_per_node);
  if (file && file->ranks() == ranks) return *file;
  require(
      !file || file->is_uniform(),
      "--ranks {} is not the number of ranks of {}, whose nodes differ in size ({}): say --ranks-per-node",
      ranks, o.file.string(), file ? file->to_string() : "");
  return Topology::uniform(ranks, file ? file->ranks_on(0) : std::min(ranks, default_ranks));
}

}  // namespace annulus::options
