// Every error of a cluster file names the file and the line.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <annulus/prediction/simulator/cluster.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::simulator {
namespace {

struct Bad {
  int line;
  std::string text;
  const char* names = "";  ///< what the message names, too
};

const std::string backward_kernel = "[[kernel]]\npass = \"backward\"\nhead_dim = 64\nrate = 1e12\n";

const std::vector<Bad> files = {
    // No TOML.
    {1, "[intra_node\n"},
    {2, "[intra_node]\nbandwidth = \n"},
    {2, "[intra_node]\nbandwidth 3e9\n"},
    {3, "[intra_node]\nlatency = 1e-6\nlatency = 2e-6\n"},
    {3, "[intra_node]\n\n[intra_node]\n"},
    {2, "[intra_node]\nbandwidth = 300 GB/s\n"},
    {2, "[inter_node]\nnics_per_node = 08\n"},
    {1, "{\"intra_node\": 3}\n"},
    // Unknown keys and tables, also in dotted and nested forms.
    {2, "\n[link]\nbandwidth = 1e9\n"},
    {2, "\n[link.intra_node]\nbandwidth = 1e9\n"},
    {1, "link.bandwidth = 1e9\n"},
    {3, "[intra_node]\nlatency = 1e-6\nnics_per_node = 2\n"},
    {2, "[intra_node]\nlink.bandwidth = 1e9\n"},
    {2, "[intra_node]\nbandwith = 3\n", "intra_node.bandwith"},
    {3, "\n[memory]\nbandwith = 1.0\n", "memory.bandwith"},
    {2, "# a comment\nnodes = 2\n"},
    {4, "[cluster]\nnodes = 1\nranks_per_node = 8\ngpus = 8\n"},
    {5, backward_kernel + "speed = 3\n"},
    // Wrong types.
    {2, "\nguessed = 1\n", "guessed"},
    {1, "intra_node = 3e9\n", "write [intra_node]"},
    {1, "inter_node = [1, 2]\n"},
    {1, "[[intra_node]]\nbandwidth = 1e9\n"},
    {1, "cluster = \"two\"\n"},
    {1, "kernel = 3\n"},
    {1, "kernel = []\n"},
    {1, "kernel = [1, 2]\n"},
    {1, "[kernel]\npass = \"forward\"\n"},
    {2, "[inter_node]\nbandwidth = \"45e9\"\n"},
    {2, "[inter_node]\nlatency = true\n", "inter_node.latency"},
    {2, "[inter_node]\nnics_per_node = 2.0\n", "inter_node.nics_per_node"},
    {2, "[cluster]\nnodes = 2.5\nranks_per_node = 8\n"},
    {3, "[cluster]\nnodes = 2\nranks_per_node = \"8\"\n"},
    {3, "[cluster]\nnodes = 2\nranks_per_node = [8, 8.0]\n"},
    {2, "[[kernel]]\npass = 3\nhead_dim = 64\nrate = 1e12\n"},
    {3, "[[kernel]]\npass = \"forward\"\nhead_dim = \"64\"\nrate = 1e12\n"},
    // Numbers out of range.
    {2, "[intra_node]\nbandwidth = 0\n", "intra_node.bandwidth"},
    {2, "[[gemm]]\nrate = 0.0\n", "gemm.rate"},
    {2, "[intra_node]\nbandwidth = -1e9\n"},
    {2, "[intra_node]\nbandwidth = inf\n"},
    {2, "[intra_node]\nlatency = nan\n"},
    {2, "[intra_node]\nlatency = -1e-6\n"},
    {2, "[inter_node]\nnics_per_node = -1\n"},
    {2, "[cluster]\nnodes = 0\nranks_per_node = 8\n", "cluster.nodes"},
    {3, "[cluster]\nnodes = 2\nranks_per_node = 0\n"},
    {3, "[cluster]\nnodes = 2\nranks_per_node = [8, 0]\n"},
    {5, "[cluster]\nnodes = 2\nranks_per_node = [\n  8,\n  -8]\n"},
    {2, "[cluster]\nnodes = 4194304\nranks_per_node = 8\n"},
    {2, "[cluster]\nnodes = 1048576\nranks_per_node = 1048576\n"},
    {3, "[[kernel]]\npass = \"forward\"\nhead_dim = 0\nrate = 1e12\n"},
    {4, "[[kernel]]\npass = \"forward\"\nhead_dim = 64\nrate = 0\n"},
    {8, backward_kernel + "[[kernel]]\npass = \"forward\"\nhead_dim = 64\nrate = -1e12\n"},
    {4, "[[kernel]]\npass = \"forward\"\nhead_dim = 64\nrows = -1\nrate = 1e12\n"},
    {2, "[[kernel]]\npass = \"sideways\"\nhead_dim = 64\nrate = 1e12\n", "kernel.pass"},
    {3, "[[kernel]]\npass = \"forward\"\ndtype = \"f64\"\nhead_dim = 64\nrate = 1.0\n", "kernel.dtype"},
    // What is missing or does not agree.
    {1, "[cluster]\nnodes = 2\n", "ranks_per_node"},
    {2, "\n[cluster]\nranks_per_node = 8\n"},
    {3, "[cluster]\nnodes = 2\nranks_per_node = [8, 8, 8]\n", "cluster.nodes is 2"},
    {3, "[cluster]\nnodes = 1\nranks_per_node = []\n"},
    {5, backward_kernel + "[[kernel]]\nhead_dim = 64\nrate = 1e12\n"},
    {5, backward_kernel + "[[kernel]]\npass = \"forward\"\nrate = 1e12\n", "head_dim"},
    {5, backward_kernel + "[[kernel]]\npass = \"forward\"\nhead_dim = 64\n"},
    {1, backward_kernel, "forward"},
};

TEST(ClusterErrors, NameTheFileAndTheLine) {
  const annulus::test::TemporaryFolder folder;
  for (const Bad& bad : files) {
    const std::string path = folder.write("cluster.toml", bad.text);
    const std::string of_text = error_text([&] { parse_cluster(bad.text, "c.toml"); }),
                      of_file = error_text([&] { read_cluster(path); });
    EXPECT_THAT(of_text, testing::AllOf(testing::StartsWith(fmt::format("c.toml:{}: ", bad.line)),
                                        testing::HasSubstr(bad.names)))
        << bad.text;
    EXPECT_EQ(of_file, path + of_text.substr(6)) << bad.text;
  }
}

TEST(ClusterErrors, FoldersAndKeysWithoutEnd) {
  const annulus::test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_THAT(error_text([&] { read_cluster(path); }), testing::HasSubstr("'" + path + "' is a folder"));
  EXPECT_THAT(error_text([] { read_cluster("missing.toml"); }), testing::HasSubstr("missing.toml"));
  EXPECT_THAT(error_text([] { read_cluster("/dev/zero"); }),
              testing::HasSubstr("'/dev/zero' is no regular file"));
  // As many tables inside of one another as dots.
  std::string key = "# " + std::string(1000, '.') + "\na";
  for (int i = 0; i < 400000; ++i) key += ".a";
  EXPECT_THAT(error_text([&] { parse_cluster(key + " = 1\n", "c.toml"); }),
              testing::StartsWith("c.toml:2: keys and values are nested more than 100 deep"));
}

}  // namespace
}  // namespace annulus::simulator
