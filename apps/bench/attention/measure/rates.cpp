#include "bench/attention/measure/rates.hpp"

#include <algorithm>

namespace annulus::bench {

using plan::Pass;

std::vector<Pass> passes_of(const AttentionOptions& options) {
  return options.backward ? std::vector{Pass::forward, Pass::backward} : std::vector{Pass::forward};
}

double flops(const plan::Problem& problem, Pass pass, std::int64_t pairs) {
  return simulate::flops(problem, pass, pairs) / problem.batch;
}

Rates rates_of(const Report& report, Pass pass) {
  const PassReport& p = report.passes[index_of(pass)];
  const auto ranks = static_cast<double>(report.ranks.size());
  Rates rates;
  std::int64_t kernel_pairs = 0;
  for (const RankRecord& rank : report.ranks) {
    const PassRecord& r = rank.passes[index_of(pass)];
    rates.pairs += r.pairs;
    kernel_pairs += r.kernel_pairs;
    rates.intra_node_bytes += r.sent_bytes - r.sent_bytes_inter_node;
    rates.inter_node_bytes += r.sent_bytes_inter_node;
    rates.exposed_communication_seconds += r.exposed_communication_seconds / ranks;
    rates.computation_ratio += r.computation_ratio / ranks;
    rates.exposed_communication_seconds_max =
        std::max(rates.exposed_communication_seconds_max, r.exposed_communication_seconds);
  }
  rates.flops = flops(report.of.problem, pass, rates.pairs);
  rates.gflops = over(rates.flops * 1e-9, p.seconds.median());
  rates.gflops_per_rank = rates.gflops / ranks;
  rates.kernel_gflops_per_rank =
      over(flops(report.of.problem, pass, kernel_pairs) * 1e-9, p.kernel_seconds.median()) / ranks;
  rates.exposed_communication_share = over(rates.exposed_communication_seconds, p.seconds.median());
  return rates;
}

double imbalance(const Report& report, Pass pass) {
  std::int64_t most = 0;
  for (const RankRecord& rank : report.ranks) most = std::max(most, rank.passes[index_of(pass)].pairs);
  const double mean =
      over(static_cast<double>(rates_of(report, pass).pairs), static_cast<double>(report.ranks.size()));
  return mean > 0 ? static_cast<double>(most) / mean : 1.0;
}

}  // namespace annulus::bench
