#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include <annulus/simulate/cluster.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::simulate {
namespace {

using annulus::test::error_text;
using annulus::test::TemporaryFolder;
using plan::Pass;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Cluster, ReadsEveryKey) {
  const TemporaryFolder folder;
  const std::string path = folder.write("cluster.toml", R"(
[cluster]
nodes = 3
ranks_per_node = [4, 4, 2]
[inside]
bandwidth = 100e9
latency = 1e-6
[between]
bandwidth = 12_500_000_000
latency = 0
rails = 2
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
  EXPECT_EQ(cluster.inside.bandwidth, 100e9);
  EXPECT_EQ(cluster.inside.latency, 1e-6);
  EXPECT_EQ(cluster.between.bandwidth, 12.5e9);
  EXPECT_EQ(cluster.between.latency, 0);
  EXPECT_EQ(cluster.rail(*cluster.topology, 3), 1);
  EXPECT_EQ(cluster.rail(*cluster.topology, 4), 0);
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

TEST(Cluster, EmptyFileIsTheDefault) {
  const Cluster cluster = parse_cluster("", "empty.toml"), standard = default_cluster();
  EXPECT_FALSE(cluster.topology.has_value());
  EXPECT_EQ(cluster.inside.bandwidth, standard.inside.bandwidth);
  EXPECT_EQ(cluster.kernels.size(), standard.kernels.size());
  EXPECT_NO_THROW(standard.check());
}

TEST(Cluster, TheFileOfTheFormatIsTheDefault) {
  std::ifstream stream(ANNULUS_CLUSTER_FORMAT);
  const std::string document{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t begin = document.find("```toml\n") + 8;
  const Cluster cluster =
      parse_cluster(document.substr(begin, document.find("```", begin) - begin), "cluster.md");
  const Cluster standard = default_cluster();
  EXPECT_EQ(cluster.inside.bandwidth, standard.inside.bandwidth);
  EXPECT_EQ(cluster.inside.latency, standard.inside.latency);
  EXPECT_EQ(cluster.between.bandwidth, standard.between.bandwidth);
  EXPECT_EQ(cluster.between.latency, standard.between.latency);
  EXPECT_EQ(cluster.rails, standard.rails);
  ASSERT_EQ(cluster.kernels.size(), standard.kernels.size());
  for (std::size_t i = 0; i < cluster.kernels.size(); ++i) {
    EXPECT_EQ(cluster.kernels[i].pass, standard.kernels[i].pass);
    EXPECT_EQ(cluster.kernels[i].head_dim, standard.kernels[i].head_dim);
    EXPECT_EQ(cluster.kernels[i].rows, standard.kernels[i].rows);
    EXPECT_EQ(cluster.kernels[i].rate, standard.kernels[i].rate);
  }
}

TEST(Cluster, ErrorsNameFileLineAndRemedy) {
  const auto error = [](std::string_view text) { return error_text([&] { parse_cluster(text, "c.toml"); }); };
  EXPECT_THAT(error("[inside]\nbandwith = 3\n"),
              AllOf(HasSubstr("c.toml:2: unknown key inside.bandwith"), HasSubstr("bandwidth, latency")));
  EXPECT_THAT(error("\n[link]\n"), HasSubstr("c.toml:2: unknown key link; known are cluster, inside"));
  EXPECT_THAT(error("[inside]\n\nbandwidth = -1.0\n"),
              HasSubstr("c.toml:3: inside.bandwidth must be a number above 0"));
  EXPECT_THAT(error("[between]\nlatency = \"fast\"\n"),
              HasSubstr("c.toml:2: between.latency must be a number not below 0"));
  EXPECT_THAT(error("[between]\nlatency = nan\n"), HasSubstr("c.toml:2: between.latency must be"));
  EXPECT_THAT(error("[between]\nrails = 1.5\n"), HasSubstr("c.toml:2: between.rails must be an integer"));
  EXPECT_THAT(error("[cluster]\nnodes = 2\n"), HasSubstr("c.toml:1: [cluster] lacks ranks_per_node"));
  EXPECT_THAT(error("[cluster]\nnodes = 2\nranks_per_node = [4]\n"),
              HasSubstr("c.toml:3: cluster.ranks_per_node lists 1 nodes, but cluster.nodes is 2"));
  EXPECT_THAT(error("[cluster]\nnodes = 0\nranks_per_node = 1\n"),
              HasSubstr("c.toml:2: cluster.nodes must be an integer from 1"));
  EXPECT_THAT(error("[cluster]\nnodes = 1048576\nranks_per_node = 1048576\n"), HasSubstr("c.toml:2:"));
  EXPECT_THAT(error("inside = 3\n"), HasSubstr("c.toml:1: inside must be a table: write [inside]"));
  EXPECT_THAT(error("kernel = 3\n"), HasSubstr("c.toml:1: kernel must be a list of tables"));
  EXPECT_THAT(error("[[kernel]]\npass = \"sideways\"\nhead_dim = 64\nrate = 1.0\n"),
              HasSubstr("c.toml:2: kernel.pass must be \"forward\" or \"backward\""));
  EXPECT_THAT(error("[[kernel]]\npass = \"forward\"\nrate = 1.0\n"),
              HasSubstr("c.toml:1: [[kernel]] lacks head_dim"));
  EXPECT_THAT(error("[[kernel]]\npass = \"forward\"\nhead_dim = 64\nrate = 1.0\n"),
              HasSubstr("no [[kernel]] has pass = \"backward\""));
  EXPECT_THAT(error("[inside]\nbandwidth = \n"), HasSubstr("c.toml:2: "));
  EXPECT_THAT(error_text([] { read_cluster("missing.toml"); }),
              HasSubstr("missing.toml: there is no such topology file"));
}

}  // namespace
}  // namespace annulus::simulate
