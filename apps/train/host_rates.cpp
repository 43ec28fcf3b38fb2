#include "host_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/start.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/model/config.hpp>

#include "base/kokkos/execution/threads.hpp"
#include "bench/links/rates.hpp"
#include "prediction/measurement/cluster.hpp"

namespace annulus::app {

namespace {

// Shapes beyond these take longer and reach the same rates.
constexpr std::int64_t most_rows = 1024, most_width = 1024;
constexpr int most_heads = 8, most_hidden = 1024, most_ffn = 4096;
constexpr measurement::Sampling quick{.repetitions = 3, .seconds = 0.05};
// A machine that is busy gets no more time. Past this each kernel runs once more, for some milliseconds.
constexpr auto most_time = std::chrono::milliseconds(1500);

/// Rows of a rank's shard, or of fewer where it is long.
std::int64_t rows_of(const training::Config& config, int context) {
  return std::clamp<std::int64_t>(config.data.sequence_length / context, 16, most_rows);
}

/// Some of the heads, as many as are enough, in groups of the model's size.
struct Heads {
  explicit Heads(const model::Config& model)
      : kv(std::clamp(most_heads * model.kv_heads / model.heads, 1, model.kv_heads)),
        query(kv * (model.heads / model.kv_heads)) {}
  int kv, query;
};

measurement::BlockOptions attention_of(const training::Config& config, DType type, int context,
                                       const measurement::Sampling& sampling) {
  const model::Config& model = config.model;
  const Heads heads(model);
  const bool causal = context == 1 || config.attention.layout.find("striped") != std::string::npos;
  return {.head_dims = {model.padded_head_dim()},
          .dtypes = {type},
          .rows = {rows_of(config, context)},
          .masks = {causal ? measurement::BlockMask::causal : measurement::BlockMask::full},
          .heads = heads.query,
          .kv_heads = heads.kv,
          .sampling = sampling};
}

bench::RateOptions products_of(const training::Config& config, DType type, int context,
                               const measurement::Sampling& sampling) {
  const model::Config& model = config.model;
  std::set<std::int64_t> widths;
  const auto add = [&](std::int64_t out, std::int64_t in) {
    widths.insert(std::clamp<std::int64_t>(std::min(out, in), 16, most_width));
  };
  for (const model::WeightMatrix& matrix : model::layer_matrices(model)) add(matrix.out, matrix.in);
  add(model.vocabulary, model.hidden);
  bench::KernelSizes sizes{.tokens = rows_of(config, context),
                           .hidden = std::min(model.hidden, most_hidden),
                           .ffn = std::min(model.ffn, most_ffn),
                           .heads = Heads(model).query,
                           .kv_heads = Heads(model).kv,
                           .head_dim = model.padded_head_dim()};
  bench::RateOptions options{.widths = {widths.begin(), widths.end()},
                             .tokens = rows_of(config, context),
                             .dtypes = {type},
                             .kernels = sizes,
                             .sampling = sampling};
  options.complete();
  return options;
}

/// What is left of the measured rates where a rank has this share of the threads.
void scale(simulator::Cluster& cluster, double share) {
  for (simulator::KernelRate& kernel : cluster.kernels) kernel.rate *= share;
  for (simulator::GemmRate& gemm : cluster.gemms) gemm.rate *= share;
  cluster.memory.device *= share;
  cluster.memory.host *= share;
}

}  // namespace

HostRates measure_host(const training::Config& config, const Topology& topology) {
  require_device();  // products and attention run through Kokkos
  const int ranks = topology.most_ranks_on_a_node();
  const auto cores = static_cast<double>(available_cores().size());
  // More ranks than cores take turns.
  const double threads = std::min<double>(host_threads(ranks), cores / ranks);
  if (has_device)
    return {
        .cluster = simulator::host_cluster(threads, simulator::unknown_core_flops),
        .source = fmt::format("a guess of {:g} cores a rank (a build for GPUs measures no CPU)", threads)};
  const auto begin = std::chrono::steady_clock::now();
  const DType type = parse_dtype(config.train.dtype, "train.dtype");
  const int context = config.parallel.context > 0 ? config.parallel.context : topology.ranks();
  const auto alone = comm::make_null();
  measurement::Sampling sampling = quick;
  sampling.deadline = begin + most_time;
  const bench::RateOptions products = products_of(config, type, context, sampling);
  const measurement::Measurements measured{
      .links = {},
      .kernels = measurement::measure_kernels(*alone, attention_of(config, type, context, sampling)),
      .products = bench::measure_products(*alone, products),
      .memory = bench::measure_memory(*alone, products)};
  const double all = HostExec().concurrency();
  HostRates rates{.cluster =
                      measurement::to_cluster(topology, measured,
                                              simulator::host_cluster(all, simulator::unknown_core_flops))
                          .cluster};
  scale(rates.cluster, std::min(1.0, threads / all));
  const simulator::Cluster& cluster = rates.cluster;
  const auto attention = [&](plan::Pass pass) {
    return cluster.rate(pass, config.model.padded_head_dim(), rows_of(config, context), type) * 1e-9;
  };
  rates.source = fmt::format(
      "this machine, measured in {:.1f} s: {:.3g} threads a rank, "
      "attention {:.3g} and {:.3g} GFLOP/s (forward, backward), products {:.3g} GFLOP/s, memory {:.3g} GB/s; "
      "a guess of {:.3g} GB/s between ranks",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), threads,
      attention(plan::Pass::forward), attention(plan::Pass::backward),
      cluster.gemm_rate(config.model.hidden, type) * 1e-9, cluster.memory.device * 1e-9,
      cluster.intra_node.bandwidth * 1e-9);
  return rates;
}

}  // namespace annulus::app
