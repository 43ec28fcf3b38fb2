#pragma once

#include <span>

#include <annulus/prediction/simulator/cluster.hpp>

namespace annulus::measurement {

/// How long a message took.
struct MessageTiming {
  double bytes = 0, seconds = 0;
};

/// Hockney's model of a link, and how far its times are from the measured ones.
struct LinkFit {
  simulator::Link link;
  double median_error = 0, largest_error = 0;  ///< |model − measured| / measured
};

/// The line seconds = latency + bytes / bandwidth, through two of the points or through one with latency
/// 0, with the least sum of |log(model / measured)|: small messages count as much as large ones, half
/// a time as much as twice the time, and single times that are far off move nothing. Throws Error without any
/// point or with one that is not positive.
LinkFit fit_link(std::span<const MessageTiming> timings);

/// How many NICs the `ranks` ranks of a node share, as simulator::Cluster::nics_per_node counts them:
/// 0 when each has its own.
///
/// `one`: times when one rank of each node alone sends to another one; `all`: when all ranks of the node do
/// so at once; the same sizes. Together they move ranks · one / all times the bytes that one moves alone in
/// the same time: the median of this factor over the sizes that bandwidth decides (those of which `one` takes
/// at least four times its latency, or else the largest), and of the divisors of `ranks` the one that is
/// nearest to it by ratio. Throws Error when the sizes differ or there is none.
int count_nics(int ranks, std::span<const MessageTiming> one, std::span<const MessageTiming> all);

}  // namespace annulus::measurement
