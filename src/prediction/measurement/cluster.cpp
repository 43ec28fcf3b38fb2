#include "prediction/measurement/cluster.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace annulus::measurement {

using simulator::Cluster;
using simulator::GemmRate;
using simulator::KernelRate;
using simulator::LinkClass;

namespace {

simulator::Link rounded(const simulator::Link& link) {
  return {.bandwidth = four_digits(link.bandwidth), .latency = four_digits(link.latency)};
}

/// Ranks of a node that take part in Pairing::all between nodes.
int senders_of_node(const Topology& topology) {
  int senders = 0;
  for (int rank = 0; rank < topology.ranks_on(0); ++rank)
    senders += peers(topology, LinkClass::inter_node, Pairing::all, rank).has_value() ? 1 : 0;
  return senders;
}

/// The sizes that both lists have.
void keep_common(std::vector<MessageTiming>& a, std::vector<MessageTiming>& b) {
  const std::size_t sizes = std::min(a.size(), b.size());  // both begin with the smallest
  a.resize(sizes);
  b.resize(sizes);
}

std::vector<KernelRate> rates(const KernelMeasurement& kernels, const std::optional<Cluster>& base) {
  std::vector<KernelRate> list;
  for (const KernelPoint& point : kernels.points)
    list.push_back(
        {point.pass, point.head_dim, point.rows, four_digits(point.rate()), point.dtype, point.mask});
  if (!base) return list;
  const std::size_t measured = list.size();
  for (const KernelRate& known : base->kernels) {
    const auto same = [&](const KernelRate& other) {
      return other.pass == known.pass && other.head_dim == known.head_dim && other.dtype == known.dtype &&
             (!known.mask || other.mask == known.mask);
    };
    if (std::none_of(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(measured), same))
      list.push_back(known);
  }
  return list;
}

std::vector<GemmRate> rates(const ProductMeasurement& products, const std::optional<Cluster>& base) {
  std::vector<GemmRate> list;
  for (const ProductPoint& point : products.points)
    list.push_back({point.width, four_digits(point.rate()), point.dtype});
  if (!base) return list;
  for (const GemmRate& known : base->gemms) {
    const auto same = [&](const ProductPoint& point) { return point.dtype == known.dtype; };
    if (std::ranges::none_of(products.points, same)) list.push_back(known);
  }
  return list;
}

}  // namespace

MeasuredCluster to_cluster(const Topology& topology, const Measurements& measured,
                           const std::optional<Cluster>& base) {
  const LinkMeasurement& links = measured.links;
  MeasuredCluster result;
  Cluster& cluster = result.cluster;
  cluster = base.value_or(simulator::default_cluster());
  cluster.topology = topology;
  if (const auto inside = links.timings(LinkClass::intra_node, Pairing::all); !inside.empty()) {
    result.intra_node = fit_link(inside);
    cluster.intra_node = rounded(result.intra_node->link);
  }
  if (auto between = links.timings(LinkClass::inter_node, Pairing::all); !between.empty()) {
    result.inter_node = fit_link(between);
    simulator::Link link = result.inter_node->link;
    const int senders = senders_of_node(topology);
    // One sender of a node: that of the ring, if there is one. In a pair the same rank receives, too, which
    // costs where processors carry the messages.
    auto one = links.timings(LinkClass::inter_node, Pairing::ring);
    if (one.empty()) one = links.timings(LinkClass::inter_node, Pairing::both_ways);
    keep_common(one, between);
    cluster.nics_per_node = one.empty() ? 0 : count_nics(senders, one, between);
    if (cluster.nics_per_node > 0) link.bandwidth *= static_cast<double>(senders) / cluster.nics_per_node;
    cluster.inter_node = rounded(link);
    // Within 5% of the NIC a rank fills it.
    const double most = one.empty() ? link.bandwidth : fit_link(one).link.bandwidth;
    cluster.rank_bandwidth = most < 0.95 * link.bandwidth ? four_digits(most) : 0;
  }
  if (!measured.kernels.points.empty()) cluster.kernels = rates(measured.kernels, base);
  if (!measured.products.points.empty()) cluster.gemms = rates(measured.products, base);
  const auto take = [](double& to, const std::optional<double>& from) {
    if (from) to = four_digits(*from);
  };
  take(cluster.memory.device, measured.memory.device);
  take(cluster.memory.host_copy, measured.memory.host_copy);
  take(cluster.memory.host, measured.memory.host);
  // One rank has no links; those of the file are then what they were.
  const bool has_links = topology.ranks() > 1 && (topology.nodes() == 1 || result.inter_node) &&
                         (topology.ranks() == topology.nodes() || result.intra_node);
  if (has_links && !measured.kernels.points.empty() && !measured.products.points.empty() &&
      measured.memory.device)
    cluster.guessed = false;
  cluster.check();
  return result;
}

}  // namespace annulus::measurement
