#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

/// Runs plans on a cluster that need not be there: the executor and its communication are real, ranks are
/// threads of this process, links (links.hpp) and, where wanted, local kernels are the cluster's.
namespace annulus::emulator {

/// A cluster in slow motion: everything takes `factor` times as long.
simulator::Cluster slowed(const simulator::Cluster& cluster, double factor);

/// The longest latency of the links between the ranks; 0 where one is alone.
double longest_latency(const simulator::Cluster& cluster, const Topology& topology);

/// A kernel for Settings::synthetic_kernel that sleeps as long as simulator::simulate counts for a local
/// kernel.
std::function<void(const executor::LocalWork&)> sleeping_kernel(const simulator::Cluster& cluster,
                                                                const plan::Problem& problem);

/// One pass, timed. Ranks start together.
struct Measured {
  double time = 0;  ///< seconds until the last rank is done
  std::vector<double>
      exposed_communication;  ///< of each rank, seconds in waits for transfers: exposed communication
  double beside_ended = 0;    ///< seconds until all has ended that travels beside it; 0: nothing does
};

struct Passes {
  Measured forward, backward;
};

/// What all ranks have on their links beside a pass, from its begin on.
struct Beside {
  simulator::SideTraffic flows = {};  ///< that nobody makes: they only load links, as in simulate_beside
  /// Collectives that a thread of each rank runs one after the other, as the stream of a GPU does: a
  /// start_reduce_scatter of so many floats per rank, then a start_all_gather of so many bytes per rank.
  std::int64_t summed_floats = 0, gathered_bytes = 0;
};

struct EmulationOptions {
  /// Settings of the attention; without a synthetic kernel the local kernels compute on seeded values.
  executor::Settings settings;
  simulator::Selected selected = {};  ///< of the pairs, what a synthetic kernel computes
  int repetitions = 1;
  Beside beside_forward = {}, beside_backward = {};  ///< the next pass begins when it has ended
};

/// Runs the forward and the backward plan, one after the other, `repetitions` times; an entry for each. The
/// plans' topology gives the ranks and their nodes. Throws Error as executor::Attention does.
std::vector<Passes> run(const plan::Plan& forward, const plan::Plan& backward,
                        const simulator::Cluster& cluster, const EmulationOptions& options = {});

}  // namespace annulus::emulator
