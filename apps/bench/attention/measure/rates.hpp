#pragma once

#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

/// simulate::flops of pairs that are summed over the batch already.
double flops(const plan::Problem& problem, plan::Pass pass, std::int64_t pairs);

/// What the records of all ranks give of one pass together.
struct Rates {
  std::int64_t pairs = 0;
  double flops = 0;                                         ///< of the pairs
  double gflops = 0;                                        ///< by the median time
  double gflops_per_rank = 0;                               ///< their mean
  double kernel_gflops_per_rank = 0;                        ///< of the local kernel alone
  std::int64_t intra_node_bytes = 0, inter_node_bytes = 0;  ///< sent
  double exposed_communication_seconds = 0;                 ///< the mean of the ranks
  double exposed_communication_seconds_max = 0;             ///< of the rank with the most
  double computation_ratio = 0;                             ///< PassRecord's, the mean of the ranks
  double exposed_communication_share = 0;  ///< exposed_communication_seconds of the time of the pass
};
Rates rates_of(const Report& report, plan::Pass pass);

/// A fraction of what may be zero.
constexpr double over(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

}  // namespace annulus::bench
