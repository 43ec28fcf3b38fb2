#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::prediction {

/// What gathers and sums of all ranks of a topology put on the links of the slowest of them
/// (comm::GatherRoute, comm::ContributionRoute). Keeps a reference to `cluster`.
class Collectives {
 public:
  Collectives(const Topology& ranks, const simulator::Cluster& cluster,
              comm::Sums sums = comm::Sums::rank_order);

  /// A gather of `bytes` of all ranks together: between the nodes first. 0 bytes: no flow.
  simulator::SideQueue gather(double bytes) const;
  /// A sum of an array of `bytes`, of which each rank gets its part: inside the nodes first. In rank order a
  /// node adds nothing up on the way, so the contributions of all its ranks travel between the nodes. Native
  /// sums are taken to travel as a gather does.
  simulator::SideQueue sum(double bytes) const;

 private:
  /// What the slowest rank receives, in parts of one rank.
  struct Share {
    int ranks_of_node = 1;
    int peers_between = 0;  // ranks of other nodes with which it exchanges at the same time
    int gathered_between = 0, summed_between = 0, inside = 0;
  };

  /// In the order of a gather. `parts_between`: parts of one rank that come from other nodes.
  simulator::SideQueue flows(double bytes, int parts_between) const;
  double between() const;

  const simulator::Cluster& cluster_;
  int ranks_ = 1;
  Share share_;
};

/// What travels beside a layer. Queues go at the same time, flows of each one after the other.
struct LayerTraffic {
  simulator::SideQueue sharding, copies;
};

/// Bytes that travel beside a layer.
struct LayerBytes {
  double gathered = 0;  ///< weights of the next layer, of all ranks together, beside both passes
  double summed = 0;    ///< gradients of the last layer, of all ranks together, beside the backward pass
  double copied = 0;    ///< activations of a rank: to its host beside the forward, back beside the backward
};
LayerTraffic forward_traffic(const LayerBytes& bytes, const Collectives& collectives,
                             const simulator::Cluster& cluster);
LayerTraffic backward_traffic(const LayerBytes& bytes, const Collectives& collectives,
                              const simulator::Cluster& cluster);

}  // namespace annulus::prediction
