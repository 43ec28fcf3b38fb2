#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::prediction {

/// Gathers and sums of all ranks of a topology, as what the slowest of them has on its links
/// (comm::GatherRoute, comm::ContributionRoute). Keeps `cluster`.
class Collectives {
 public:
  Collectives(const Topology& ranks, const simulator::Cluster& cluster,
              comm::Sums sums = comm::Sums::rank_order);

  /// A gather of `bytes` of all ranks together: between the nodes first. 0 bytes: nothing.
  simulator::SideQueue gather(double bytes) const;
  /// A sum of `bytes` of which each rank gets its part: inside the nodes first. In rank order contributions
  /// travel as they are, between the nodes those of all ranks of a node; sums of the library's own are taken
  /// to travel as a gather does.
  simulator::SideQueue sum(double bytes) const;

 private:
  /// What the slowest rank receives, in parts of one rank.
  struct Share {
    int ranks_of_node = 1;
    int peers_between = 0;  // that it exchanges with between nodes, at the same time
    int gathered_between = 0, summed_between = 0, inside = 0;
  };

  /// `parts_between`: of one rank, that come from other nodes.
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
