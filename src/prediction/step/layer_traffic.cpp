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
    : cluster_(cluster),
      ranks_(ranks.ranks()),
      gathered_(share(ranks, comm::in_two_stages(ranks))),
      summed_(sums == comm::Sums::native ? gathered_
                                         : share(ranks, comm::combines_in_two_stages(ranks, DType::f32))) {}

Collectives::Share Collectives::share(const Topology& ranks, bool in_two_stages) const {
  if (in_two_stages) {
    const int local = ranks.ranks_on(0), nodes = ranks.nodes();
    return {.ranks_of_node = local,
            .between = nodes - 1,
            .inside = (local - 1) * nodes,
            .peers_inside = local - 1};
  }
  Share slowest;
  double longest = -1;
  for (int node = 0; node < ranks.nodes(); ++node) {
    const int local = ranks.ranks_on(node);
    const Share of_node{
        .ranks_of_node = local, .between = ranks_ - local, .inside = local - 1, .peers_inside = local - 1};
    const double seconds = simulator::seconds_alone(flows(1, of_node));
    if (seconds <= longest) continue;
    longest = seconds;
    slowest = of_node;
  }
  return slowest;
}

simulator::SideQueue Collectives::gather(double bytes) const {
  return flows(bytes, gathered_);
}

simulator::SideQueue Collectives::sum(double bytes) const {
  simulator::SideQueue queue = flows(bytes, summed_);
  std::ranges::reverse(queue);
  return queue;
}

simulator::SideQueue Collectives::flows(double bytes, const Share& share) const {
  if (bytes == 0) return {};
  simulator::SideQueue queue;
  const double part = bytes / ranks_;
  if (share.between > 0) {
    const double rate = between(share.ranks_of_node);
    queue.push_back({.way = Way::inter_node,
                     .bytes = with_latency(share.between * part, rate, cluster_.inter_node.latency),
                     .rate = rate,
                     .messages = share.between});
  }
  if (share.inside > 0)
    queue.push_back({.way = Way::intra_node,
                     .bytes = with_latency(share.inside * part, cluster_.intra_node.bandwidth,
                                           cluster_.intra_node.latency),
                     .rate = cluster_.intra_node.bandwidth,
                     .messages = share.peers_inside});
  return queue;
}

double Collectives::between(int ranks_of_node) const {
  const double nic = cluster_.nics_per_node > 0
                         ? cluster_.inter_node.bandwidth * cluster_.nics_per_node / ranks_of_node
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
