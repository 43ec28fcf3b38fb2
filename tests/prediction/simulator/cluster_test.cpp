#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include <annulus/prediction/simulator/cluster.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::simulator {
namespace {

using annulus::test::TemporaryFolder;
using plan::Pass;
using ::testing::HasSubstr;

TEST(Cluster, ReadsEveryKey) {
  const TemporaryFolder folder;
  const std::string path = folder.write("cluster.toml", R"(
[cluster]
nodes = 3
ranks_per_node = [4, 4, 2]
[intra_node]
bandwidth = 100e9
latency = 1e-6
[inter_node]
bandwidth = 12_500_000_000
latency = 0
nics_per_node = 2
[[kernel]]
pass = "forward"
head_dim = 64
rate = 1e12
[[kernel]]
pass = "forward"
head_dim = 64
rows = 1024
rate = 2e12
[[kernel]]
pass = "backward"
head_dim = 128
rate = 3e12
)");
  const Cluster cluster = read_cluster(path);
  ASSERT_TRUE(cluster.topology.has_value());
  EXPECT_EQ(*cluster.topology, Topology({4, 4, 2}));
  EXPECT_EQ(cluster.intra_node.bandwidth, 100e9);
  EXPECT_EQ(cluster.intra_node.latency, 1e-6);
  EXPECT_EQ(cluster.inter_node.bandwidth, 12.5e9);
  EXPECT_EQ(cluster.inter_node.latency, 0);
  EXPECT_EQ(cluster.nic(*cluster.topology, 3), 1);
  EXPECT_EQ(cluster.nic(*cluster.topology, 4), 0);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 1023), 1e12);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 1024), 2e12);
  EXPECT_EQ(cluster.rate(Pass::backward, 64, 0), 3e12);
}

TEST(Cluster, RateIsThatOfTheNearestShape) {
  Cluster cluster = default_cluster();
  cluster.kernels = {{Pass::forward, 64, 512, 1},
                     {Pass::forward, 64, 2048, 2},
                     {Pass::forward, 128, 0, 3},
                     {Pass::backward, 64, 0, 4}};
  EXPECT_EQ(cluster.rate(Pass::forward, 32, 100), 1);   // all have more rows: the one with the fewest
  EXPECT_EQ(cluster.rate(Pass::forward, 80, 4096), 2);  // 80/64 < 128/80
  EXPECT_EQ(cluster.rate(Pass::forward, 96, 4096), 3);  // 96/64 > 128/96
  EXPECT_EQ(cluster.rate(Pass::forward, 256, 4096), 3);
  EXPECT_EQ(cluster.rate(Pass::backward, 256, 0), 4);
}

TEST(Cluster, RateIsThatOfTheTypeFirst) {
  Cluster cluster = default_cluster();
  cluster.kernels = {{Pass::forward, 64, 0, 1},
                     {Pass::forward, 128, 0, 2, DType::f32},
                     {Pass::forward, 128, 0, 3, DType::bf16},
                     {Pass::backward, 64, 0, 4, DType::f32},
                     {Pass::backward, 64, 0, 5, DType::bf16}};
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 0, DType::f32), 2);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 0, DType::bf16), 3);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 0, DType::f16), 1);   // for every type
  EXPECT_EQ(cluster.rate(Pass::backward, 64, 0, DType::f16), 5);  // as wide
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 0), 1);
  cluster.kernels.pop_back();
  EXPECT_EQ(cluster.rate(Pass::backward, 64, 0, DType::f16), 4);  // nothing else
}

TEST(Cluster, RateIsThatOfTheMask) {
  Cluster cluster = default_cluster();
  cluster.kernels = {{Pass::forward, 64, 0, 1, {}, BlockMask::full},
                     {Pass::forward, 64, 512, 2, {}, BlockMask::causal},
                     {Pass::forward, 64, 0, 3},
                     {Pass::backward, 64, 0, 4, {}, BlockMask::full},
                     {Pass::backward, 128, 0, 5, {}, BlockMask::causal}};
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 1024, {}, BlockMask::full), 1);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 1024, {}, BlockMask::causal), 2);
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 100, {}, BlockMask::causal), 2) << "the mask goes before rows";
  EXPECT_EQ(cluster.rate(Pass::forward, 64, 1024), 3);
  EXPECT_EQ(cluster.rate(Pass::backward, 64, 0, {}, BlockMask::causal), 4) << "head_dim goes before the mask";
  EXPECT_EQ(cluster.rate(Pass::backward, 128, 0, {}, BlockMask::full), 5) << "nothing else";
}

TEST(Cluster, TextIsReadBackAsItWas) {
  Cluster cluster;
  cluster.intra_node = {.bandwidth = 1.0 / 3.0, .latency = 0};
  cluster.inter_node = {.bandwidth = 12345678901234567.0, .latency = 1.2345678901234567e-7};
  cluster.nics_per_node = 4;
  cluster.kernels = {{Pass::forward, 64, 4096, 1e300, DType::bf16},
                     {Pass::forward, 8, 0, 7, {}, BlockMask::causal},
                     {Pass::backward, 256, Mask::max_tokens, 5e-324, DType::f16}};
  for (const std::optional<Topology>& topology :
       {std::optional<Topology>(), std::optional(Topology({3, 3})), std::optional(Topology({4, 4, 2}))}) {
    cluster.topology = topology;
    EXPECT_EQ(parse_cluster(to_text(cluster), "c.toml"), cluster) << to_text(cluster);
  }
  EXPECT_EQ(parse_cluster(to_text(default_cluster()), "c.toml"), default_cluster());
  cluster.rank_bandwidth = 1.0 / 7.0;
  EXPECT_EQ(parse_cluster(to_text(cluster), "c.toml"), cluster) << to_text(cluster);
  for (const char* comment : {"", "Guesses."}) {
    cluster.guessed = true;
    EXPECT_EQ(parse_cluster(to_text(cluster, {.file = comment}), "c.toml"), cluster);
    cluster.guessed = false;
    EXPECT_EQ(parse_cluster(to_text(cluster, {.file = comment}), "c.toml"), cluster);
  }
  cluster.rank_bandwidth = -1;
  EXPECT_THAT(error_text([&] { to_text(cluster); }), HasSubstr("inter_node.rank_bandwidth is -1"));
  cluster.nics_per_node = -1;
  EXPECT_THAT(error_text([&] { to_text(cluster); }), HasSubstr("inter_node.nics_per_node is -1"));
}

TEST(Cluster, TextReadsWellAndSaysWhereItComesFrom) {
  Cluster cluster;
  cluster.topology = Topology({2, 2});
  cluster.intra_node = {.bandwidth = 300e9, .latency = 5e-6};
  cluster.inter_node = {.bandwidth = 12.34e9, .latency = 0};
  cluster.kernels = {{Pass::forward, 64, 0, 120e12}, {Pass::backward, 64, 256, 2500, DType::f32}};
  cluster.gemms = {{.width = 128, .rate = 7e9}};
  EXPECT_EQ(
      to_text(
          cluster,
          {.file = "measured\n\non host a", .intra_node = "", .inter_node = "2 NICs = 1", .kernels = "all"}),
      R"(# measured
#
# on host a

[cluster]
nodes = 2
ranks_per_node = 2

[intra_node]
bandwidth = 300e9
latency = 5e-6

# 2 NICs = 1
[inter_node]
bandwidth = 12.34e9
latency = 0.0
nics_per_node = 0

[memory]
bandwidth = 2.7e12
host_copy_bandwidth = 50e9
host_bandwidth = 120e9

# all

[[kernel]]
pass = "forward"
head_dim = 64
rows = 0
rate = 120e12

[[kernel]]
pass = "backward"
dtype = "f32"
head_dim = 64
rows = 256
rate = 2.5e3

[[gemm]]
width = 128
rate = 7e9
)");
}

TEST(Cluster, ProductsTakeTheRateOfTheirTypeAndWidth) {
  const Cluster cluster = parse_cluster(
      "[[gemm]]\ndtype = \"bf16\"\nrate = 1.0\n[[gemm]]\ndtype = \"bf16\"\nwidth = 4096\nrate = 2.0\n"
      "[[gemm]]\ndtype = \"f32\"\nwidth = 1000\nrate = 3.0\n[memory]\nhost_bandwidth = 5.0\n",
      "c.toml");
  EXPECT_EQ(cluster.gemm_rate(4095, DType::bf16), 1.0);
  EXPECT_EQ(cluster.gemm_rate(5000, DType::bf16), 2.0);
  EXPECT_EQ(cluster.gemm_rate(10, DType::f32), 3.0);  // there is no narrower one
  EXPECT_EQ(cluster.memory.host, 5.0);
  EXPECT_EQ(cluster.memory.device, default_cluster().memory.device);
}

TEST(Cluster, EmptyFileIsTheDefault) {
  const Cluster cluster = parse_cluster("", "empty.toml"), standard = default_cluster();
  EXPECT_FALSE(cluster.topology.has_value());
  EXPECT_EQ(cluster, standard);
  EXPECT_NO_THROW(standard.check());
}

TEST(Cluster, TheFileOfTheFormatIsTheDefault) {
  std::ifstream stream(ANNULUS_CLUSTER_FORMAT);
  const std::string document{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t begin = document.find("```toml\n") + 8;
  const Cluster cluster =
      parse_cluster(document.substr(begin, document.find("```", begin) - begin), "cluster.md");
  EXPECT_EQ(cluster, default_cluster());
}

}  // namespace
}  // namespace annulus::simulator
