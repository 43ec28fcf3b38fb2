#include <annulus/prediction/simulator/cluster.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::simulator {

using plan::Pass;

int Cluster::nic(const Topology& ranks, int rank) const {
  const int local = ranks.local_rank(rank);
  return nics_per_node == 0 ? local : local % nics_per_node;
}

namespace {

/// How far the rate of one mask is from that of another; less is better.
int distance_of_masks(std::optional<BlockMask> measured, std::optional<BlockMask> wanted) {
  if (measured == wanted) return 0;
  return measured ? 2 : 1;
}

/// How far the rate of one type is from that of another; less is better.
int distance_of_types(std::optional<DType> measured, std::optional<DType> wanted) {
  if (measured == wanted) return 0;
  if (!measured) return 1;
  return wanted && size_of(*measured) == size_of(*wanted) ? 2 : 3;
}

}  // namespace

std::string_view name_of(BlockMask mask) {
  return mask == BlockMask::full ? "full" : "causal";
}

double Cluster::rate(Pass pass, int head_dim, std::int64_t rows, std::optional<DType> dtype,
                     std::optional<BlockMask> mask) const {
  // Smaller is better, entry by entry of the tuple.
  const auto distance = [&](const KernelRate& kernel) {
    const double ratio = std::abs(std::log(static_cast<double>(kernel.head_dim) / head_dim));
    const bool too_large = kernel.rows > rows;
    return std::tuple(distance_of_types(kernel.dtype, dtype), ratio, kernel.head_dim,
                      distance_of_masks(kernel.mask, mask), too_large,
                      too_large ? kernel.rows : -kernel.rows);
  };
  const KernelRate* best = nullptr;
  for (const KernelRate& kernel : kernels) {
    if (kernel.pass == pass && (best == nullptr || distance(kernel) < distance(*best))) best = &kernel;
  }
  require(best != nullptr, "the cluster has no rate of the {} kernel: add a [[kernel]] with pass = \"{}\"",
          plan::name_of(pass), plan::name_of(pass));
  return best->rate;
}

double Cluster::gemm_rate(std::int64_t width, DType dtype) const {
  const auto distance = [&](const GemmRate& gemm) {
    const bool too_wide = gemm.width > width;
    return std::tuple(distance_of_types(gemm.dtype, dtype), too_wide, too_wide ? gemm.width : -gemm.width);
  };
  require(!gemms.empty(), "the cluster has no rate of products: add a [[gemm]]");
  return std::ranges::min_element(gemms, {}, distance)->rate;
}

void Cluster::check() const {
  const auto check_link = [](const char* name, const Link& link) {
    require(std::isfinite(link.bandwidth) && link.bandwidth > 0,
            "{}.bandwidth is {}: give bytes per second above 0", name, link.bandwidth);
    require(std::isfinite(link.latency) && link.latency >= 0, "{}.latency is {}: give seconds, at least 0",
            name, link.latency);
  };
  check_link("intra_node", intra_node);
  check_link("inter_node", inter_node);
  require(nics_per_node >= 0,
          "inter_node.nics_per_node is {}: give the NICs of a node, or 0 for one per rank", nics_per_node);
  require(std::isfinite(rank_bandwidth) && rank_bandwidth >= 0,
          "inter_node.rank_bandwidth is {}: give bytes per second above 0, or 0 for what a NIC has",
          rank_bandwidth);
  for (const KernelRate& kernel : kernels) {
    require(std::isfinite(kernel.rate) && kernel.rate > 0, "kernel.rate is {}: give FLOP/s above 0",
            kernel.rate);
    require(kernel.head_dim >= 1, "kernel.head_dim is {}: it must be positive", kernel.head_dim);
    require(kernel.rows >= 0, "kernel.rows is {}: it must not be negative", kernel.rows);
    const DType type = kernel.dtype.value_or(DType::f32);
    require(type == DType::f32 || type == DType::bf16 || type == DType::f16,
            "kernel.dtype is {}: attention stores f32, bf16 or f16", name_of(type));
  }
  for (const GemmRate& gemm : gemms) {
    require(std::isfinite(gemm.rate) && gemm.rate > 0, "gemm.rate is {}: give FLOP/s above 0", gemm.rate);
    require(gemm.width >= 0, "gemm.width is {}: it must not be negative", gemm.width);
  }
  for (const auto& [name, bandwidth] :
       {std::pair("bandwidth", memory.device), std::pair("host_copy_bandwidth", memory.host_copy),
        std::pair("host_bandwidth", memory.host)})
    require(std::isfinite(bandwidth) && bandwidth > 0, "memory.{} is {}: give bytes per second above 0", name,
            bandwidth);
  rate(Pass::forward, 1, 0);
  rate(Pass::backward, 1, 0);
}

std::vector<GemmRate> default_gemms() {
  return {{.width = 0, .rate = 600e12, .dtype = DType::bf16},
          {.width = 0, .rate = 50e12, .dtype = DType::f32}};
}

Cluster default_cluster() {
  Cluster cluster;
  cluster.intra_node = {.bandwidth = 300e9, .latency = 5e-6};
  cluster.inter_node = {.bandwidth = 45e9, .latency = 15e-6};
  cluster.kernels = {{Pass::forward, 64, 0, 400e12},
                     {Pass::forward, 128, 0, 600e12},
                     {Pass::backward, 64, 0, 300e12},
                     {Pass::backward, 128, 0, 450e12}};
  return cluster;
}

Cluster host_cluster(double cores, double core_flops) {
  // What of a core's peak is reached; measured on AVX-512 (docs/benchmarks/cpu.md), where
  // products in bf16 are made in fp32.
  constexpr double of_attention = 0.8, of_products = 0.85, of_narrow_products = 0.6;
  constexpr double core_memory = 8e9, core_adamw = 6e9;  // bytes per second
  const double peak = cores * core_flops;
  Cluster cluster = default_cluster();
  cluster.intra_node = {.bandwidth = 10e9, .latency = 2e-6};
  cluster.kernels = {{.pass = Pass::forward, .head_dim = 64, .rate = of_attention * peak},
                     {.pass = Pass::backward, .head_dim = 64, .rate = of_attention * peak}};
  cluster.gemms = {{.width = 0, .rate = of_products * peak, .dtype = DType::f32},
                   {.width = 0, .rate = of_narrow_products * peak, .dtype = DType::bf16}};
  cluster.memory = {.device = cores * core_memory, .host_copy = 10e9, .host = cores * core_adamw};
  return cluster;
}

double flops(const plan::Problem& problem, Pass pass, std::int64_t pairs) {
  const double of_pair = problem.flops_of_pair(pass);
  return of_pair * problem.batch * static_cast<double>(pairs);
}

}  // namespace annulus::simulator
