#include <gtest/gtest.h>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "prediction/measurement/cluster.hpp"

namespace annulus::measurement {
namespace {

using plan::Pass;
using simulator::Cluster;
using simulator::KernelRate;
using simulator::LinkClass;

/// Times of a link for a pattern, added to a measurement.
void add(LinkMeasurement& links, LinkClass link, Pairing pattern, double latency, double bandwidth) {
  for (std::int64_t bytes = 1024; bytes <= 1 << 26; bytes *= 4) {
    const double seconds = latency + static_cast<double>(bytes) / bandwidth;
    links.points.push_back({link, pattern, bytes, {seconds, seconds, seconds, 1, 1}});
  }
}

KernelPoint kernel(Pass pass, DType type, int head_dim, std::int64_t rows, BlockMask mask, double rate) {
  return {pass, type, head_dim, rows, mask, rate, {1, 1, 1, 1, 1}};
}

TEST(MeasuredCluster, RanksThatShareARailShareItsBandwidth) {
  LinkMeasurement links;
  add(links, LinkClass::intra_node, Pairing::all, 2e-6, 100e9);
  add(links, LinkClass::inter_node, Pairing::both_ways, 10e-6, 24e9);
  add(links, LinkClass::inter_node, Pairing::all, 10e-6, 6e9);
  const auto result = to_cluster(Topology({8, 8}), {.links = links});
  EXPECT_EQ(result.cluster.topology, Topology({8, 8}));
  EXPECT_EQ(result.cluster.intra_node, (simulator::Link{100e9, 2e-6}));
  EXPECT_EQ(result.cluster.nics_per_node, 2);
  EXPECT_EQ(result.cluster.inter_node, (simulator::Link{24e9, 10e-6}));
  EXPECT_NEAR(result.inter_node->link.bandwidth, 6e9, 1) << "of one sender";
  EXPECT_EQ(result.cluster.kernels, simulator::default_cluster().kernels);
}

TEST(MeasuredCluster, OneSenderIsThatOfTheRing) {
  LinkMeasurement links;
  add(links, LinkClass::inter_node, Pairing::both_ways, 10e-6, 2.4e9);  // receiving slows it down
  add(links, LinkClass::inter_node, Pairing::all, 10e-6, 1.8e9);
  EXPECT_EQ(to_cluster(Topology({2, 2}), {.links = links}).cluster.nics_per_node, 0);
  add(links, LinkClass::inter_node, Pairing::ring, 10e-6, 3.3e9);
  const auto result = to_cluster(Topology({2, 2}), {.links = links});
  EXPECT_EQ(result.cluster.nics_per_node, 1);
  EXPECT_EQ(result.cluster.inter_node, (simulator::Link{3.6e9, 10e-6}));
  EXPECT_EQ(result.cluster.rank_bandwidth, 3.3e9) << "one rank does not fill the NIC";
}

TEST(MeasuredCluster, RanksThatDoNotDisturbOneAnotherHaveTheirOwnRails) {
  LinkMeasurement links;
  add(links, LinkClass::inter_node, Pairing::both_ways, 10e-6, 24e9);
  add(links, LinkClass::inter_node, Pairing::all, 12e-6, 23e9);
  const auto result = to_cluster(Topology({4, 4, 4}), {.links = links});
  EXPECT_EQ(result.cluster.nics_per_node, 0);
  EXPECT_EQ(result.cluster.inter_node, (simulator::Link{23e9, 12e-6}));
  EXPECT_EQ(result.cluster.rank_bandwidth, 0);
  EXPECT_FALSE(result.intra_node);
  EXPECT_EQ(result.cluster.intra_node, simulator::default_cluster().intra_node);
}

TEST(MeasuredCluster, BaseGivesWhatWasNotMeasured) {
  Cluster base = simulator::default_cluster();
  base.intra_node = {1e9, 1e-6};
  base.inter_node = {2e9, 2e-6};
  base.nics_per_node = 3;
  base.kernels = {{Pass::forward, 64, 0, 10, DType::bf16},
                  {Pass::forward, 64, 0, 10, DType::bf16, BlockMask::full},
                  {Pass::backward, 64, 0, 13, DType::bf16, BlockMask::full},
                  {Pass::forward, 64, 0, 11, DType::f16},
                  {Pass::backward, 64, 0, 12}};
  const KernelMeasurement kernels{
      .points = {kernel(Pass::forward, DType::bf16, 64, 256, BlockMask::causal, 1234567),
                 kernel(Pass::backward, DType::bf16, 64, 256, BlockMask::causal, 2),
                 kernel(Pass::forward, DType::bf16, 64, 256, BlockMask::full, 3)},
      .notes = {}};
  LinkMeasurement links;
  add(links, LinkClass::intra_node, Pairing::all, 5e-6, 5e9);
  const Cluster cluster = to_cluster(Topology({3}), {.links = links, .kernels = kernels}, base).cluster;
  EXPECT_EQ(cluster.intra_node, (simulator::Link{5e9, 5e-6}));
  EXPECT_EQ(cluster.inter_node, base.inter_node);
  EXPECT_EQ(cluster.nics_per_node, 3);
  const std::vector<KernelRate> expected = {{Pass::forward, 64, 256, 1235000, DType::bf16, BlockMask::causal},
                                            {Pass::backward, 64, 256, 2, DType::bf16, BlockMask::causal},
                                            {Pass::forward, 64, 256, 3, DType::bf16, BlockMask::full},
                                            {Pass::backward, 64, 0, 13, DType::bf16, BlockMask::full},
                                            {Pass::forward, 64, 0, 11, DType::f16},
                                            {Pass::backward, 64, 0, 12}};
  EXPECT_EQ(cluster.kernels, expected);
  EXPECT_EQ(to_cluster(Topology({3}), {.links = links}, base).cluster.kernels, base.kernels);
  EXPECT_EQ(to_cluster(Topology({3}), {.links = links, .kernels = kernels}).cluster.kernels.size(), 3u)
      << "no H100 beside them";
}

TEST(MeasuredCluster, ProductsAndMemory) {
  Cluster base = simulator::default_cluster();
  base.gemms = {{1024, 10, DType::bf16}, {0, 11, DType::f32}, {0, 12}};
  base.memory = {.device = 1e9, .host_copy = 2e9, .host = 3e9};
  ProductMeasurement products;
  for (const std::int64_t width : {512, 2048})
    products.points.push_back({.dtype = DType::bf16,
                               .width = width,
                               .tokens = 100,
                               .seconds = {.median = static_cast<double>(width * width) * 1e-9}});
  const Measurements measured{
      .links = {}, .products = products, .memory = {.device = 4.00049e9, .host_copy = {}, .host = 5e9}};
  const Cluster cluster = to_cluster(Topology({2}), measured, base).cluster;
  const std::vector<simulator::GemmRate> expected = {
      {512, 600e9, DType::bf16}, {2048, 600e9, DType::bf16}, {0, 11, DType::f32}, {0, 12}};
  EXPECT_EQ(cluster.gemms, expected);
  EXPECT_EQ(cluster.memory, (simulator::MemoryRates{.device = 4e9, .host_copy = 2e9, .host = 5e9}));
  EXPECT_EQ(to_cluster(Topology({2}), {.links = {}}, base).cluster.gemms, base.gemms);
  EXPECT_EQ(to_cluster(Topology({2}), measured).cluster.gemms.size(), 2u) << "no H100 beside them";
}

TEST(MeasuredCluster, IsMeasuredAndReadBack) {
  LinkOptions links = quick_links();
  links.max_bytes = 1 << 16;
  links.sampling = {.repetitions = 2, .seconds = 0.005};
  BlockOptions kernels;
  kernels.head_dims = {16};
  kernels.dtypes = {DType::bf16};
  kernels.rows = {32};
  kernels.masks = {BlockMask::causal};
  kernels.heads = kernels.kv_heads = 1;
  kernels.sampling = links.sampling;
  const auto measure = [&](comm::Communicator& communicator) {
    return to_cluster(communicator.topology(), {.links = measure_links(communicator, links),
                                                .kernels = measure_kernels(communicator, kernels)})
        .cluster;
  };
  std::vector<Cluster> clusters(4);
  comm::run_loopback(Topology({2, 2}), [&](comm::Communicator& communicator) {
    clusters[communicator.rank()] = measure(communicator);
  });
  for (const Cluster& cluster : clusters) EXPECT_EQ(cluster, clusters[0]);
  EXPECT_EQ(simulator::parse_cluster(simulator::to_text(clusters[0]), "text"), clusters[0]);
  EXPECT_NE(clusters[0].intra_node, simulator::default_cluster().intra_node);
  EXPECT_NE(clusters[0].inter_node, simulator::default_cluster().inter_node);
  ASSERT_EQ(clusters[0].kernels.size(), 2u);
  EXPECT_EQ(clusters[0].kernels[1].pass, Pass::backward);
  EXPECT_EQ(clusters[0].kernels[1].dtype, DType::bf16);

  const Cluster one = measure(*comm::make_null());
  EXPECT_EQ(one.topology, Topology({1}));
  EXPECT_EQ(one.intra_node, simulator::default_cluster().intra_node);
}

}  // namespace
}  // namespace annulus::measurement
