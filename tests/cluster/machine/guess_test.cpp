#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include <annulus/base/error.hpp>

#include "cluster/machine/environment.hpp"
#include "cluster/machine/nodes.hpp"
#include "support/error_text.hpp"

namespace annulus::machine {
namespace {

using testing::HasSubstr;

Guess guess(const Machine& machine, int ranks, const Profile& profile = {}, double core_flops = 0) {
  const NodeResources resources = node_resources(machine, profile);
  return guess_cluster(machine, resources, assign_ranks(machine, resources, ranks),
                       Topology::uniform(2 * ranks, ranks), core_flops);
}

TEST(Guess, FollowsNvlinksAndCards) {
  const Guess h100 = guess(node("h100-8"), 8);
  EXPECT_DOUBLE_EQ(h100.cluster.intra_node.bandwidth, 0.8 * 18 * 25e9);
  EXPECT_DOUBLE_EQ(h100.cluster.inter_node.bandwidth, 0.9 * 50e9);
  EXPECT_EQ(h100.cluster.nics_per_node, 0);
  EXPECT_DOUBLE_EQ(h100.cluster.rate(plan::Pass::forward, 128, 4096), 0.6 * 989e12);
  const Guess a100 = guess(node("a100-8"), 8);
  EXPECT_DOUBLE_EQ(a100.cluster.intra_node.bandwidth, 0.8 * 12 * 25e9);
  EXPECT_DOUBLE_EQ(a100.cluster.inter_node.bandwidth, 0.9 * 25e9);
}

TEST(Guess, WithoutTheDriverTheNameDecides) {
  const Guess known = guess(node("gpu-4"), 4);
  EXPECT_DOUBLE_EQ(known.cluster.intra_node.bandwidth, 0.8 * 300e9);
  EXPECT_THAT(known.comments.intra_node, HasSubstr("class A100"));
  EXPECT_THAT(known.comments.inter_node, HasSubstr("its rate is not known"));
}

TEST(Guess, LinksThatJoinOnlySomeGpusAreNotCounted) {
  Machine machine = node("gpu-4");
  for (Gpu& gpu : machine.gpus) gpu.nvlinks = 2;
  machine.gpus[0].nvlink_peers = {machine.gpus[1].locality.bus};
  const Guess pairs = guess(machine, 4);
  EXPECT_DOUBLE_EQ(pairs.cluster.intra_node.bandwidth, 0.8 * 32e9);
  EXPECT_THAT(pairs.comments.intra_node, HasSubstr("PCIe"));
}

TEST(Guess, FewerRailsThanRanks) {
  Profile profile;
  profile.devices = {"mlx5_0", "mlx5_2"};
  profile.nics = 2;
  EXPECT_EQ(guess(node("gpu-4"), 4, profile).cluster.nics_per_node, 2);
}

// A node of CPUs once had the products and the memory of an H100.
TEST(Guess, OfCpusFollowsTheirCores) {
  const Guess cpu = guess(node("cpu"), 2, {}, 80e9);
  const double peak = 64 * 80e9;
  for (const DType type : {DType::f32, DType::bf16}) {
    EXPECT_LE(cpu.cluster.gemm_rate(4096, type), peak);
    EXPECT_GE(cpu.cluster.gemm_rate(4096, type), peak / 2);
    EXPECT_LE(cpu.cluster.rate(plan::Pass::backward, 128, 4096, type), peak);
    EXPECT_GE(cpu.cluster.rate(plan::Pass::backward, 128, 4096, type), peak / 2);
  }
  EXPECT_LT(cpu.cluster.memory.device, 1e12);
  EXPECT_LT(cpu.cluster.memory.host, 1e12);
  // Without a known processor every rate is one of a CPU still.
  EXPECT_LT(guess(node("cpu"), 2).cluster.gemm_rate(4096, DType::bf16), 64 * 500e9);
}

TEST(Guess, OfGpusFollowsTheirClass) {
  const Guess a100 = guess(node("a100-8"), 8);
  EXPECT_DOUBLE_EQ(a100.cluster.gemm_rate(4096, DType::bf16), 0.6 * 312e12);
  EXPECT_LE(a100.cluster.gemm_rate(4096, DType::f32), 19.5e12);
  EXPECT_LE(a100.cluster.memory.device, 2.0e12);
  EXPECT_THAT(a100.comments.gemms, HasSubstr("GUESS"));
  EXPECT_THAT(a100.comments.memory, HasSubstr("GUESS"));
}

TEST(Guess, NodesThatAreNotHereFollowTheirType) {
  const Guess a800 = guess_node_type("a800");
  EXPECT_EQ(a800.cluster.topology, Topology::uniform(8, 8));
  EXPECT_DOUBLE_EQ(a800.cluster.intra_node.bandwidth, 0.8 * 200e9);
  EXPECT_DOUBLE_EQ(a800.cluster.inter_node.bandwidth, 0.9 * 25e9);
  EXPECT_EQ(a800.cluster.kernels, guess(node("a100-8"), 8).cluster.kernels);
  const Guess gh200 = guess_node_type("gh200");
  EXPECT_EQ(gh200.cluster.topology, Topology::uniform(4, 4));
  EXPECT_GT(gh200.cluster.memory.host_copy, 300e9) << "NVLink-C2C, not PCIe";
  for (const Guess& guess : {a800, gh200}) EXPECT_TRUE(guess.cluster.guessed);
  EXPECT_THAT(error_text([] { guess_node_type("a900"); }), mentions("'a900'", "a100, a800, h800, gh200"));
}

TEST(Guess, BoundsLieAroundWhatIsUsual) {
  for (const char* name : {"a100", "a800", "h800", "gh200"}) {
    const simulator::Cluster low = guess_node_type(name, Bound::low).cluster,
                             usual = guess_node_type(name).cluster,
                             high = guess_node_type(name, Bound::high).cluster;
    const auto rates = [](const simulator::Cluster& c) {
      return std::array{c.intra_node.bandwidth,
                        c.inter_node.bandwidth,
                        c.memory.device,
                        c.memory.host_copy,
                        c.rate(plan::Pass::forward, 128, 4096),
                        c.rate(plan::Pass::backward, 128, 4096),
                        c.gemm_rate(4096, DType::bf16)};
    };
    for (std::size_t i = 0; i < rates(low).size(); ++i) {
      EXPECT_LT(rates(low)[i], rates(usual)[i]) << name << i;
      EXPECT_LT(rates(usual)[i], rates(high)[i]) << name << i;
    }
    // They have no range (docs/topology.md).
    const auto others = [](const simulator::Cluster& c) {
      return std::array{c.intra_node.latency, c.inter_node.latency, c.memory.host};
    };
    EXPECT_EQ(others(low), others(high)) << name;
  }
}

TEST(Guess, ReadsCoresFromCpuinfo) {
  EXPECT_DOUBLE_EQ(
      processor_flops("processor : 0\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu fma avx avx2 avx512f\n"),
      64 * 1.25 * 2e9);
  EXPECT_DOUBLE_EQ(processor_flops("flags\t\t: fpu fma avx avx2\ncpu MHz\t\t: 3000.0\n"), 32 * 1.25 * 3e9);
  EXPECT_DOUBLE_EQ(processor_flops("Features\t: fp asimd sve\n"), 24 * 3e9);  // no clock
  EXPECT_EQ(processor_flops(""), 0);
  EXPECT_EQ(processor_flops("nothing of the kind"), 0);
}

TEST(Placement, MoreRanksThanANodeHasAreRefused) {
  const Machine machine = node("cpu");
  const NodeResources resources = node_resources(machine, {});
  EXPECT_THROW(assign_ranks(machine, resources, 100'000'000), Error);
}

TEST(Guess, IsAClusterFileThatSaysSo) {
  const Guess cpu = guess(node("cpu"), 2);
  const std::string text = simulator::to_text(cpu.cluster, cpu.comments);
  EXPECT_THAT(text, mentions("# GUESS: ranks of one node through its memory",
                             "# GUESS: mlx5_0 (infiniband) at 100 Gbit/s", "# GUESS: 64 cores per rank"));
  EXPECT_EQ(simulator::parse_cluster(text, "guess"), cpu.cluster);
  EXPECT_TRUE(cpu.cluster.guessed);
}

}  // namespace
}  // namespace annulus::machine
