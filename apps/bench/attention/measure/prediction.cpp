#include "bench/attention/measure/prediction.hpp"

#include <algorithm>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/division.hpp>

#include "options/checks.hpp"
#include "prediction/measurement/cluster.hpp"

namespace annulus::bench {

using plan::Pass;

namespace {

/// Σ over the rounds of a ring of the work of the busiest rank (Striped Attention, Algorithm 1).
double ring_rounds(const plan::Problem& problem, const Layout& layout) {
  const int ranks = problem.ranks();
  std::vector<PositionMap> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(layout.shard(problem.mask.tokens(), ranks, rank));
  double sum = 0;
  for (int round = 0; round < ranks; ++round) {
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto from = static_cast<std::size_t>((rank - round + ranks) % ranks);
      most = std::max(most, problem.mask.pairs(shards[rank], shards[from]));
    }
    sum += static_cast<double>(most);
  }
  return sum;
}

}  // namespace

PredictionSource read_machine(const std::string& topology) {
  if (topology == "none") return {std::nullopt, false, "none, as --cluster says"};
  PredictionSource machine;
  machine.cluster = simulator::read_cluster(topology);
  // A file without kernels gets those of default_cluster, which are no kernels of this machine.
  machine.has_kernels = machine.cluster->kernels != simulator::default_cluster().kernels;
  machine.source = "links of " + simulator::rates_text(*machine.cluster, topology) +
                   (machine.has_kernels ? " and its kernel rates" : ", kernel rates of this run");
  return machine;
}

simulator::Cluster measure_machine(comm::Communicator& communicator, const AttentionOptions& o,
                                   bool kernels) {
  const measurement::LinkMeasurement links =
      measurement::measure_links(communicator, measurement::quick_links());
  measurement::KernelMeasurement rates;
  if (kernels) {
    measurement::BlockOptions shape;
    shape.head_dims = {o.head_dim};
    shape.dtypes = {options::parse_storage(o.dtype)};
    shape.rows = {ceil_divide(o.tokens, o.ranks)};
    shape.heads = o.heads;
    shape.kv_heads = options::checked_kv_heads(o.heads, o.kv_heads);
    shape.kernel = attention::parse_kernel(o.kernel, "--kernel");
    rates = measurement::measure_kernels(communicator, shape);
  }
  return measurement::to_cluster(communicator.topology(), {.links = links, .kernels = rates}).cluster;
}

void predict(CaseReport& report, const PredictionSource& machine) {
  simulator::Cluster cluster = machine.cluster.value_or(simulator::default_cluster());
  bool has_rates = true;
  for (const Pass pass : passes_of(report.of.options)) {
    if (machine.has_kernels) break;
    const double rate = kernel_rate(report, pass);
    has_rates = has_rates && rate > 0;
    if (rate <= 0) continue;
    std::erase_if(cluster.kernels, [pass](const simulator::KernelRate& k) { return k.pass == pass; });
    cluster.kernels.push_back({pass, report.of.problem.head_dim, 0, rate, {}});
  }
  report.prediction_source = machine.source;
  if (!has_rates)
    report.prediction_source += "; the local kernel has nothing to compute on a block of one shard";
  if (report.sparsity) report.prediction_source += "; of selected blocks, without selection and columns";
  for (const Pass pass : passes_of(report.of.options)) {
    const plan::Plan& plan = pass == Pass::forward ? report.of.forward : report.of.backward;
    simulator::Selected selected;
    if (report.sparsity)
      selected = {report.sparsity->density(), [&](const plan::Problem& problem, const PositionMap& queries,
                                                  const PositionMap& keys, plan::HeadRange heads) {
                    return report.sparsity->blocks->block_pairs(queries, keys, heads) / problem.batch;
                  }};
    const simulator::Simulation simulation =
        simulator::simulate(report.of.options.overlap ? plan : simulator::without_overlap(plan), cluster,
                            simulator::Detail::totals, plan::RankSubset::automatic, selected);
    PassReport& p = report.passes[index_of(pass)];
    if (!report.sparsity) p.imbalance = simulation.imbalance;  // else it was measured
    if (!machine.cluster || !has_rates) continue;
    p.prediction = PassPrediction{simulation.time, 0};
    for (const simulator::RankSummary& rank : simulation.ranks)
      p.prediction->exposed_communication_seconds +=
          rank.exposed_communication / static_cast<double>(simulation.ranks.size());
  }
}

double theoretical_maximum_speedup(plan::Problem problem) {
  // A hybrid's balanced cut has rows for its groups; the bound is of a ring of all ranks.
  problem.grid = {};
  const double here = ring_rounds(problem, plan::arranged_for("ring", problem).layout);
  return here > 0 ? ring_rounds(problem, Layout(Layout::Kind::contiguous)) / here : 1.0;
}

}  // namespace annulus::bench
