#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::prediction {

/// What gathers and sums of all ranks of a topology put on the links of the slowest of them
/// (comm::GatherRoute, comm::ReductionRoute). Keeps a reference to `cluster`.
class Collectives {
 public:
  Collectives(const Topology& ranks, const simulator::Cluster& cluster,
              comm::Sums sums = comm::Sums::rank_order);

  /// A gather of `bytes` of all ranks together: between the nodes first. 0 bytes: no flow.
  simulator::SideQueue gather(double bytes) const;
  /// A sum in f32 of an array of `bytes`, of which each rank gets its part: inside the nodes first. Native
  /// sums are taken to travel as a gather does.
  simulator::SideQueue sum(double bytes) const;

 private:
  /// What the slowest rank receives, in parts of one rank.
  struct Share {
    int ranks_of_node = 1;
    int between = 0;  // from ranks of other nodes, a part of each at the same time
    int inside = 0, peers_inside = 0;
  };
  Share share(const Topology& ranks, bool in_two_stages) const;

  /// In the order of a gather.
  simulator::SideQueue flows(double bytes, const Share& share) const;
  /// Bytes/s of a rank to other nodes, while all of its node use their NICs.
  double between(int ranks_of_node) const;

  const simulator::Cluster& cluster_;
  int ranks_ = 1;
  Share gathered_, summed_;
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
