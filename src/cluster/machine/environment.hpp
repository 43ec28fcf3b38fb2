#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <annulus/prediction/simulator/cluster.hpp>

#include "cluster/machine/placement.hpp"
#include "cluster/topology/job.hpp"

namespace annulus::machine {

/// One environment variable of a rank.
struct EnvironmentSetting {
  std::string name;
  std::string value;
  std::string why;
  bool kept = false;  ///< it was set before, to this value, and stays
  friend bool operator==(const EnvironmentSetting&, const EnvironmentSetting&) = default;
};

/// What a rank's environment is to say: GPUs, threads, NICs, then the profile's own variables. What
/// `variables` has already is kept. A rank has a thread for each of its cores, and no more than the cores of
/// ANNULUS_CPUS_PER_RANK (annulus-topology --launch), if set; throws Error when that is no positive number.
/// ANNULUS_CPUS and ANNULUS_MEMORY_NODES are the lists to which the rank is to be bound (`taskset -c`,
/// `numactl --membind`).
std::vector<EnvironmentSetting> settings_of(const Machine& machine, const NodeResources& resources,
                                            const RankBinding& rank, const Profile& profile,
                                            const Variables& variables);

/// A cluster file without measurements: every rate is a guess from the class of the device, and its comments
/// say so.
struct Guess {
  simulator::Cluster cluster;
  simulator::ClusterComments comments;
};

/// fp32 operations a second that one core can do, by instruction set and clock, from the text of
/// /proc/cpuinfo; 0 where that tells neither.
double processor_flops(std::string_view cpuinfo);

/// Guesses links, kernels, products and memory of nodes like `machine`, whose ranks have the bindings
/// `ranks`. `core_flops`: processor_flops of the nodes; 0: not known.
Guess guess_cluster(const Machine& machine, const NodeResources& resources,
                    const std::vector<RankBinding>& ranks, const std::optional<Topology>& topology,
                    double core_flops = 0);

/// Which number a guess takes of the range in which measurements lie.
enum class Bound { low, usual, high };

/// Guesses nodes that need not be there by the name of their type: a100, a800, h800 (eight GPUs) or gh200
/// (four); each GPU has a NIC. Throws Error that lists the names.
Guess guess_node_type(std::string_view name, Bound bound = Bound::usual);

}  // namespace annulus::machine
