#include "prediction/step/layer_traffic.hpp"

#include <algorithm>

#include "attention/comm/routes.hpp"

namespace annulus::prediction {

namespace {

using Way = simulator::SideFlow::Way;

/// A latency takes the time of so many bytes more.
simulator::SideFlow flow(Way way, double bytes, double rate, double latency) {
  return {.way = way, .bytes = bytes + latency * rate, .rate = rate};
}

simulator::SideQueue copy(Way way, double bytes, const simulator::Cluster& cluster) {
  if (bytes == 0) return {};
  return {{.way = way, .bytes = bytes, .rate = cluster.memory.host_copy}};
}

}  // namespace

Collectives::Collectives(const Topology& ranks, const simulator::Cluster& cluster)
    : cluster_(cluster), ranks_(ranks.ranks()) {
  if (comm::in_two_stages(ranks)) {
    const int local = ranks.ranks_on(0);
    share_ = {local, ranks.nodes() - 1, (local - 1) * ranks.nodes()};
    return;
  }
  double longest = -1;
  for (int node = 0; node < ranks.nodes(); ++node) {
    const int local = ranks.ranks_on(node);
    Collectives of_node = *this;
    of_node.share_ = {local, ranks_ - local, local - 1};
    if (of_node.seconds(1) <= longest) continue;
    longest = of_node.seconds(1);
    share_ = of_node.share_;
  }
}

simulator::SideQueue Collectives::gather(double bytes) const {
  if (bytes == 0) return {};
  simulator::SideQueue flows;
  const double part = bytes / ranks_;
  if (share_.between_nodes > 0)
    flows.push_back(
        flow(Way::inter_node, share_.between_nodes * part, between(), cluster_.inter_node.latency));
  if (share_.inside > 0)
    flows.push_back(flow(Way::intra_node, share_.inside * part, cluster_.intra_node.bandwidth,
                         cluster_.intra_node.latency));
  return flows;
}

simulator::SideQueue Collectives::sum(double bytes) const {
  simulator::SideQueue flows = gather(bytes);
  std::ranges::reverse(flows);
  return flows;
}

double Collectives::between() const {
  const double nic = cluster_.nics_per_node > 0
                         ? cluster_.inter_node.bandwidth * cluster_.nics_per_node / share_.ranks_of_node
                         : cluster_.inter_node.bandwidth;
  return cluster_.rank_bandwidth > 0 ? std::min(nic, cluster_.rank_bandwidth) : nic;
}

LayerTraffic forward_traffic(const LayerBytes& bytes, const Collectives& collectives,
                             const simulator::Cluster& cluster) {
  return {.sharding = collectives.gather(bytes.gathered),
          .copies = copy(Way::to_host, bytes.copied, cluster)};
}

LayerTraffic backward_traffic(const LayerBytes& bytes, const Collectives& collectives,
                              const simulator::Cluster& cluster) {
  LayerTraffic traffic{.sharding = collectives.sum(bytes.summed),
                       .copies = copy(Way::from_host, bytes.copied, cluster)};
  const simulator::SideQueue gather = collectives.gather(bytes.gathered);
  traffic.sharding.insert(traffic.sharding.end(), gather.begin(), gather.end());
  return traffic;
}

}  // namespace annulus::prediction
