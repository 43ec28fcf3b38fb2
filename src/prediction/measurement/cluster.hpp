#pragma once

#include <optional>

#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/measurement/fit.hpp"
#include "prediction/measurement/kernels.hpp"
#include "prediction/measurement/links.hpp"
#include "prediction/measurement/rates.hpp"

namespace annulus::measurement {

/// A cluster as measured.
struct MeasuredCluster {
  simulator::Cluster cluster;
  std::optional<LinkFit> intra_node,
      inter_node;  ///< nothing: no such link was measured. Of one sender, not of a NIC
};

/// What was measured of a cluster; what is empty was not.
struct Measurements {
  LinkMeasurement links;
  KernelMeasurement kernels = {};
  ProductMeasurement products = {};
  MemoryMeasurement memory = {};
};

/// The cluster of the measurements, its numbers rounded to 4 digits. `intra_node` and `inter_node` are fitted
/// to Pairing::all, so that they are what each of all ranks gets at once; NICs are counted from
/// Pairing::both_ways and all, and the bandwidth of a NIC is that of the ranks that share it. What was not
/// measured is as in `base`: links, and rates of other passes, types, head dimensions and masks; without
/// `base` as in default_cluster, of whose kernels and products none stays when any was measured.
MeasuredCluster to_cluster(const Topology& topology, const Measurements& measured,
                           const std::optional<simulator::Cluster>& base = {});

}  // namespace annulus::measurement
