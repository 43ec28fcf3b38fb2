#pragma once

#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::prediction {

/// Gathers and sums of all ranks of a topology, as what the slowest of them has on its links
/// (comm::GatherRoute). Keeps `cluster`.
class Collectives {
 public:
  Collectives(const Topology& ranks, const simulator::Cluster& cluster);

  /// A gather of `bytes` of all ranks together: between the nodes first. 0 bytes: nothing.
  simulator::SideQueue gather(double bytes) const;
  /// Contributions to a sum: inside the nodes first.
  simulator::SideQueue sum(double bytes) const;
  /// Seconds of either with the links for itself.
  double seconds(double bytes) const { return simulator::seconds_alone(gather(bytes)); }

 private:
  double between() const;

  /// What the slowest rank receives of a gather, in parts of one rank.
  struct Share {
    int ranks_of_node = 1, between_nodes = 0, inside = 0;
  };

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
