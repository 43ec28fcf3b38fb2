#include "prediction/step/layer_traffic.hpp"

#include <algorithm>

#include "attention/comm/routes.hpp"

namespace annulus::prediction {

namespace {

using Way = simulator::SideFlow::Way;

/// A latency takes the time of so many bytes more.
double with_latency(double bytes, double rate, double latency) {
  return bytes + latency * rate;
}

simulator::SideQueue copy(Way way, double bytes, const simulator::Cluster& cluster) {
  if (bytes == 0) return {};
  return {{.way = way, .bytes = bytes, .rate = cluster.memory.host_copy}};
}

}  // namespace

Collectives::Collectives(const Topology& ranks, const simulator::Cluster& cluster, comm::Sums sums)
    : cluster_(cluster), ranks_(ranks.ranks()) {
  if (comm::in_two_stages(ranks)) {
    const int local = ranks.ranks_on(0), peers = ranks.nodes() - 1;
    share_ = {.ranks_of_node = local,
              .peers_between = peers,
              .gathered_between = peers,
              .summed_between = sums == comm::Sums::rank_order ? local * peers : peers,
              .inside = (local - 1) * ranks.nodes()};
    return;
  }
  double longest = -1;
  for (int node = 0; node < ranks.nodes(); ++node) {
    const int local = ranks.ranks_on(node), peers = ranks_ - local;
    Collectives of_node = *this;
    of_node.share_ = {.ranks_of_node = local,
                      .peers_between = peers,
                      .gathered_between = peers,
                      .summed_between = peers,
                      .inside = local - 1};
    const double seconds = simulator::seconds_alone(of_node.gather(1));
    if (seconds <= longest) continue;
    longest = seconds;
    share_ = of_node.share_;
  }
}

simulator::SideQueue Collectives::gather(double bytes) const {
  return flows(bytes, share_.gathered_between);
}

simulator::SideQueue Collectives::sum(double bytes) const {
  simulator::SideQueue queue = flows(bytes, share_.summed_between);
  std::ranges::reverse(queue);
  return queue;
}

simulator::SideQueue Collectives::flows(double bytes, int parts_between) const {
  if (bytes == 0) return {};
  simulator::SideQueue queue;
  const double part = bytes / ranks_;
  if (parts_between > 0)
    queue.push_back({.way = Way::inter_node,
                     .bytes = with_latency(parts_between * part, between(), cluster_.inter_node.latency),
                     .rate = between(),
                     .messages = share_.peers_between});
  if (share_.inside > 0)
    queue.push_back({.way = Way::intra_node,
                     .bytes = with_latency(share_.inside * part, cluster_.intra_node.bandwidth,
                                           cluster_.intra_node.latency),
                     .rate = cluster_.intra_node.bandwidth,
                     .messages = share_.ranks_of_node - 1});
  return queue;
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
