// annulus-topology as its users run it: several nodes from files, jobs from Slurm's variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/prediction/simulator/cluster.hpp>

#include "cluster/machine/machine.hpp"
#include "support/error_text.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"

namespace annulus::topology_app {
namespace {

using annulus::test::ShellResult;
using annulus::test::TemporaryFolder;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string nodes = ANNULUS_NODES;

/// Runs the program with these variables alone, those of sanitizers, and the folders of libraries, which
/// modules and Spack name.
ShellResult program(const std::string& arguments, const std::string& variables = "") {
  return annulus::test::run_shell(
      "env -i PATH=\"$PATH\" "
      "LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" ASAN_OPTIONS=\"$ASAN_OPTIONS\" " +
      variables + " '" ANNULUS_TOPOLOGY_PROGRAM "' " + arguments);
}

std::string output(const std::string& arguments, const std::string& variables = "") {
  return output_of(program(arguments, variables));
}

std::string failure(const std::string& arguments, const std::string& variables = "") {
  return output_of(program(arguments, variables), 1);
}

/// Four nodes of one type, n1 to n4, below two switches that Slurm's order mixes.
class FourNodes : public testing::Test {
 protected:
  FourNodes() {
    io::write_text_atomically(folder.file("switches"),
                              "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1,3]\n"
                              "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[2,4]\n"
                              "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n");
  }

  static std::string files(const std::string& type) {
    std::string text = "--xml";
    for (const char* host : {"n1", "n2", "n3", "n4"})
      text += std::string(" ").append(host).append("=").append(nodes).append("/").append(type).append(".xml");
    return text + " ";
  }
  std::string switches() const { return "--switches " + folder.file("switches") + " "; }

  TemporaryFolder folder;
  const std::string job =
      "SLURM_JOB_ID=17 'SLURM_JOB_NODELIST=n[1-4]' 'SLURM_JOB_CPUS_PER_NODE=48(x4)' SLURM_CPUS_ON_NODE=48 "
      "'SLURM_TASKS_PER_NODE=4(x4)' SLURM_NTASKS_PER_NODE=4 SLURM_NTASKS=16 ";
};

TEST_F(FourNodes, TheTreeShowsJobSwitchesAndWarnings) {
  const std::string text = output(files("gpu-4") + switches(), job);
  EXPECT_THAT(text, mentions("Slurm job 17: 4 nodes × 4 ranks", "n3: ranks 8-11, switch spine.leaf1",
                             "warning: the ranks go back and forth between switches (4 crossings",
                             "GPU 0  0000:03:00.0", "NIC mlx5_0 (ib0)", "GUESS"));
  EXPECT_THAT(text, Not(HasSubstr("n2: ranks 4-7, switch spine.leaf1")));
}

TEST_F(FourNodes, WarningsAreErrorsWhenStrict) {
  EXPECT_THAT(failure("--strict " + files("gpu-4") + switches(), job),
              HasSubstr("annulus-topology: the ranks go back and forth"));
}

TEST_F(FourNodes, CyclicRanksAreWarnedOf) {
  const std::string text = output(files("gpu-4"), job + "SLURM_DISTRIBUTION=cyclic ");
  EXPECT_THAT(text, HasSubstr("warning: ranks of n1 are not consecutive (rank 4 is there, rank 3 is not)"));
}

TEST_F(FourNodes, TheLauncherOrdersRanksBySwitch) {
  const std::string hosts = folder.file("hosts");
  const std::string text = output(files("gpu-4") + switches() + "--launch --hostfile " + hosts, job);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("export ANNULUS_NODES=4 "), HasSubstr("export ANNULUS_NODELIST=n1,n3,n2,n4 "),
            HasSubstr("export ANNULUS_RANKS_PER_NODE=4 "), HasSubstr("export ANNULUS_ALL_RANKS=16 "),
            HasSubstr("export ANNULUS_CPUS_PER_RANK=12 "), HasSubstr("export ANNULUS_SWITCHES=leaf1,leaf2 "),
            HasSubstr("export ANNULUS_DISTRIBUTION=arbitrary "),
            HasSubstr("export ANNULUS_HOSTFILE=" + hosts), Not(HasSubstr("back and forth"))));
  EXPECT_EQ(io::read_text(hosts), "n1\nn1\nn1\nn1\nn3\nn3\nn3\nn3\nn2\nn2\nn2\nn2\nn4\nn4\nn4\nn4\n");
  EXPECT_THAT(output(files("gpu-4") + switches() + "--launch", job),
              mentions("ANNULUS_NODELIST=n1,n2,n3,n4 ", "ANNULUS_DISTRIBUTION=block:block "));
}

TEST_F(FourNodes, AStepOnTwoNodesStaysBelowOneSwitch) {
  const std::string hosts = folder.file("hosts");
  const std::string text =
      output(files("gpu-4") + switches() + "--launch --nodes 2 --hostfile " + hosts, job);
  EXPECT_THAT(text, mentions("ANNULUS_NODES=2 ", "ANNULUS_NODELIST=n1,n3 ", "ANNULUS_ALL_RANKS=8 ",
                             "ANNULUS_SWITCHES=leaf1 ", "ANNULUS_DISTRIBUTION=block:block "));
  EXPECT_FALSE(std::filesystem::exists(hosts));
  EXPECT_THAT(failure(files("gpu-4") + "--launch --nodes 5", job),
              HasSubstr("--nodes 5: the job has 4 (n1, n2, n3, n4)"));
}

TEST_F(FourNodes, CpusPerTaskIsWhatTheUserAskedSlurmFor) {
  EXPECT_THAT(output(files("gpu-4") + "--launch", job + "SLURM_CPUS_PER_TASK=8 "),
              HasSubstr("ANNULUS_CPUS_PER_RANK=8 "));
  EXPECT_THAT(output(files("gpu-4") + "--launch --ranks-per-node 2", job + "SLURM_CPUS_PER_TASK=8 "),
              mentions("ANNULUS_RANKS_PER_NODE=2 ", "ANNULUS_CPUS_PER_RANK=24 "));
  EXPECT_THAT(failure(files("gpu-4") + "--launch", job + "SLURM_CPUS_PER_TASK=13 "),
              HasSubstr("n1: the job has 48 logical CPUs there, and 4 ranks are to have 13 each"));
  EXPECT_THAT(failure(files("gpu-4") + "--launch --ranks-per-node 49", job),
              HasSubstr("49 ranks are to have 1 each: ask for more"));
  // Nodes that no switch is known to have above them.
  EXPECT_THAT(output(files("gpu-4") + "--launch", job), HasSubstr("ANNULUS_SWITCHES=''  # not known"));
}

TEST_F(FourNodes, UnequalPartsOfNodesAreRefused) {
  EXPECT_THAT(failure(files("gpu-4") + "--launch", job + "'SLURM_JOB_CPUS_PER_NODE=48(x3),16' "),
              mentions("n1 has 48 logical CPUs of this job and n4 has 16", "--exclusive"));
  EXPECT_THAT(failure(files("gpu-4") + "--launch", job + "'SLURM_TASKS_PER_NODE=4(x3),3' "),
              HasSubstr("n1 has 4 tasks of this job and n4 has 3"));
}

TEST_F(FourNodes, SwitchesWithoutAJobAndNodesOfOneNameAreRefused) {
  EXPECT_THAT(failure(files("gpu-4") + switches()), mentions("--switches", "--ranks"));
  EXPECT_THAT(failure("--xml n1=" + nodes + "/gpu-4.xml n1=" + nodes + "/gpu-4.xml"),
              mentions("'n1' is there twice"));
}

TEST_F(FourNodes, DifferentTypesAreRefused) {
  const std::string mixed = "--xml n1=" + nodes + "/gpu-4.xml n2=" + nodes + "/gpu-4.xml n3=" + nodes +
                            "/a100-8.xml n4=" + nodes + "/gpu-4.xml ";
  EXPECT_THAT(failure(mixed, job), mentions("nodes differ: n1 has GPUs: 4 × GA100", "--exclude=n3"));
}

TEST_F(FourNodes, FindingsOfAllNodesAreOneLine) {
  const std::string text = failure(files("gpu-4") + "--profile " + folder.file("p.toml"), job);
  EXPECT_THAT(text, HasSubstr("p.toml: there is no such site profile"));
  io::write_text_atomically(folder.file("p.toml"), "node.gpus = 8\n");
  EXPECT_THAT(failure(files("gpu-4") + "--profile " + folder.file("p.toml"), job),
              HasSubstr("n1 and 3 other nodes: 4 GPUs, but the profile promises 8"));
}

TEST_F(FourNodes, DescriptionsOfAllNodesAreRead) {
  const std::string all = folder.file("all");
  std::filesystem::create_directory(all);
  for (const char* host : {"n1", "n2", "n3"})
    std::filesystem::copy_file(nodes + "/gpu-4.xml", all + "/" + host + ".xml");
  EXPECT_THAT(failure("--from " + all, job),
              mentions("node n4 of the job has left no description", "--save"));
  std::filesystem::copy_file(nodes + "/gpu-4.xml", all + "/n4.xml");
  EXPECT_THAT(output("--from " + all, job), HasSubstr("n1 (and 3 more that were looked at)"));
}

TEST(AnnulusTopology, WritesAClusterFileOfGuesses) {
  const TemporaryFolder folder;
  output("--xml " + nodes + "/h100-8.xml --output " + folder.file("c.toml"));
  EXPECT_THAT(io::read_text(folder.file("c.toml")),
              AllOf(StartsWith("# Written by annulus-topology"), HasSubstr("annulus-bench links --base")));
  const simulator::Cluster cluster = simulator::read_cluster(folder.file("c.toml"));
  EXPECT_EQ(cluster.topology, Topology::uniform(8, 8));
  EXPECT_DOUBLE_EQ(cluster.intra_node.bandwidth, 360e9);
}

// data/clusters and the guesses of the program have one source.
TEST(AnnulusTopology, ClusterFilesOfTheTreeAreItsGuesses) {
  const TemporaryFolder folder;
  for (const std::string type : {"a100", "a800", "h800", "gh200"}) {
    output("--node-type " + type + " --output " + folder.file("c.toml"));
    EXPECT_EQ(io::read_text(folder.file("c.toml")), io::read_text(ANNULUS_CLUSTERS "/" + type + ".toml"))
        << "write it again";
  }
  output("--node-type a800 --bound low --output " + folder.file("low.toml"));
  EXPECT_LT(simulator::read_cluster(folder.file("low.toml")).rate(plan::Pass::forward, 128, 1024),
            simulator::read_cluster(ANNULUS_CLUSTERS "/a800.toml").rate(plan::Pass::forward, 128, 1024));
  EXPECT_THAT(failure("--node-type a900 --output " + folder.file("c.toml")),
              HasSubstr("a100, a800, h800, gh200"));
}

TEST(AnnulusTopology, EnvironmentIsForAShell) {
  const std::string arguments = "--xml " + nodes + "/h100-8.xml --env --local-rank 5 --local-ranks 8";
  const ShellResult result =
      annulus::test::run_shell("eval \"$('" ANNULUS_TOPOLOGY_PROGRAM "' " + arguments +
                               " 2>/dev/null)\"; echo $UCX_NET_DEVICES $ANNULUS_CPUS $NCCL_IB_HCA");
  EXPECT_EQ(result.output,
            "mlx5_9:1 70-83,182-195 =mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11\n");
  EXPECT_THAT(output(arguments, "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"),
              HasSubstr("# export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7  # was set before"));
  EXPECT_THAT(failure("--xml " + nodes + "/cpu.xml --env"), HasSubstr("give --local-rank and --local-ranks"));
  EXPECT_THAT(failure("--env --local-rank 2 --local-ranks 2"),
              HasSubstr("--local-rank 2 of --local-ranks 2"));
}

TEST(AnnulusTopology, ARankKeepsTheGpuThatSlurmShowsItAlone) {
  // The driver shows the process the fourth of eight GPUs, as its first.
  std::string text = io::read_text(nodes + "/h100-8.xml");
  for (int gpu = 0; gpu < 8; ++gpu) {
    const std::string before = fmt::format("name=\"AnnulusOrdinal\" value=\"{}\"", gpu);
    const std::size_t at = text.find(before);
    ASSERT_NE(at, text.npos);
    text.replace(at, before.size(), fmt::format("name=\"AnnulusOrdinal\" value='{}'", gpu == 3 ? 0 : -1));
  }
  const TemporaryFolder folder;
  const std::string arguments =
      "--xml " + folder.write("one.xml", text) + " --env --local-rank 5 --local-ranks 8";
  EXPECT_THAT(output(arguments, "CUDA_VISIBLE_DEVICES=0"),
              mentions("# export CUDA_VISIBLE_DEVICES=0 ", "UCX_NET_DEVICES=mlx5_5:1 ",
                       "ANNULUS_CPUS=42-55,154-167 "));
}

TEST(AnnulusTopology, JsonTellsWhatTheTextTells) {
  const json all = json::parse(output_of(annulus::test::run_shell(
      "'" ANNULUS_TOPOLOGY_PROGRAM "' --xml " + nodes + "/h100-8.xml --json - 2>/dev/null")));
  const json& node = all.at("nodes").at(0);
  EXPECT_EQ(node.at("fabric_nics"),
            json({"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}));
  EXPECT_EQ(node.at("gpus").at(4).at("bus"), "0000:9d:00.0");
  EXPECT_EQ(node.at("ranks").at(7).at("path_type"), "PIX");
  EXPECT_EQ(node.at("ranks").at(7).at("cpus").size(), 28U);
  EXPECT_EQ(all.at("diagnostics").at(0).at("severity"), "warning");
  EXPECT_EQ(all.at("job").at("host_of_rank").size(), 8U);
  EXPECT_EQ(all.at("format_version"), 3);
  const json rank = json::parse(
      output("--xml " + nodes + "/cpu.xml --env --local-rank 1 --local-ranks 2 --json - 2>/dev/null"));
  EXPECT_EQ(rank.at("rank").at("nic"), "mlx5_0");
  EXPECT_EQ(rank.at("environment").at(0).at("name"), "OMP_NUM_THREADS");
}

TEST(AnnulusTopology, ExecSetsBindsAndBecomesTheProgram) {
  const std::string show =
      "--exec -- sh -c 'echo $OMP_NUM_THREADS $ANNULUS_CPUS; "
      "grep Cpus_allowed_list /proc/self/status; exit 7'";
  const std::string result =
      output_of(program("--local-rank 0 --local-ranks 1 " + show, "ANNULUS_TOPOLOGY_QUIET=1"), 7);
  const auto& cores = machine::describe_this_machine().machine.cores;
  const std::vector<int> bound = machine::bound_cpus();
  std::vector<int> expected;
  for (const machine::Core& core : cores) {
    const bool usable =
        std::ranges::any_of(core.cpus, [&](int cpu) { return std::ranges::find(bound, cpu) != bound.end(); });
    if (core.allowed && usable) expected.insert(expected.end(), core.cpus.begin(), core.cpus.end());
  }
  const std::string list = machine::list_text(expected);
  EXPECT_THAT(result, mentions(" " + list + "\n", "list:\t" + list + "\n"));
  EXPECT_THAT(program("--local-rank 0 --local-ranks 1 " + show).output,
              HasSubstr("annulus-topology: rank 0: OMP_NUM_THREADS="));
  EXPECT_THAT(failure("--local-rank 0 --local-ranks 1 --exec -- /no/such/program"),
              HasSubstr("'/no/such/program' cannot be started: No such file"));
}

TEST(AnnulusTopology, RanksOfAListAreShown) {
  const TemporaryFolder folder;
  io::write_text_atomically(folder.file("ranks"), "0 a\n1 b\n2 a\n3 b\n");
  const std::string text =
      output("--xml a=" + nodes + "/cpu.xml b=" + nodes + "/cpu.xml --ranks " + folder.file("ranks"));
  EXPECT_THAT(text, mentions("a: ranks 0,2", "ranks of a are not consecutive", "0-63"));
  EXPECT_EQ(output("--where",
                   "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                   "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURMD_NODENAME=n7"),
            "3 n7\n");
}

TEST(AnnulusTopology, SavesThisMachineUnderSlurmsName) {
  const TemporaryFolder folder;
  output("--save " + folder.file("all"), "SLURMD_NODENAME=n7");
  EXPECT_THAT(output("--from " + folder.file("all")), HasSubstr("n7: "));
}

TEST(AnnulusTopology, OptionsThatDoNotGoTogetherAreRefused) {
  EXPECT_THAT(failure("--env --launch"), mentions("--env", "--launch"));
  EXPECT_THAT(failure("--exec"), HasSubstr("command"));
  EXPECT_THAT(failure("hello"), HasSubstr("--exec"));
  EXPECT_THAT(failure("--hostfile f"), HasSubstr("--launch"));
  EXPECT_THAT(failure("--local-rank 0 --local-ranks 2"), mentions("--env", "--exec"));
  EXPECT_THAT(failure("--xml /nowhere.xml"), HasSubstr("'/nowhere.xml': No such file"));
  for (const char* what :
       {"--output f --env", "--ranks-per-node 2 --local-rank 0 --local-ranks 2 --env", "--json f --save s",
        "--profile f --where", "--json f --node-type a100 --output g"})
    EXPECT_THAT(failure(what), HasSubstr(" has no effect with --")) << what;
  EXPECT_THAT(failure("--profile ''"), mentions("--profile", "empty"));
  EXPECT_THAT(failure("--json f --output ./f"), mentions("--json", "--output"));
  EXPECT_THAT(failure("", "SLURM_JOB_ID=3 SLURM_HET_SIZE=2"), HasSubstr("Slurm job 3 is heterogeneous"));
}

TEST(AnnulusTopology, SavesIntoItsFolderAlone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "nodes");
  const std::string save = "--save " + folder.file("nodes");
  for (const std::string name : {"../outside", "..", "a/b"})
    EXPECT_THAT(failure(save, "SLURMD_NODENAME=" + name), HasSubstr("'" + name + "' is no name of a file"));
  std::filesystem::create_symlink(folder.file("outside"), folder.path() / "nodes" / "n1.xml");
  EXPECT_THAT(failure(save, "SLURMD_NODENAME=n1"), HasSubstr("is a symbolic link"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("outside")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("outside.xml")));
  output(save, "SLURMD_NODENAME=n2");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "nodes" / "n2.xml"));
}

TEST(AnnulusTopology, FilesThatCrashHwlocAreNamed) {
  std::string text = io::read_text(nodes + "/cpu.xml");
  const std::size_t at = text.find("<!DOCTYPE"), end = text.find('>', at);
  ASSERT_NE(at, text.npos);
  text.replace(at, end - at + 1, "<!DOCTYPE topology [<!ENTITY a \"b\">]>");
  const TemporaryFolder folder;
  const std::string file = folder.write("entity.xml", text);
  EXPECT_THAT(failure("--xml " + file), mentions(file, "cannot read it"));
  ASSERT_EQ(::mkfifo(folder.file("pipe.xml").c_str(), 0600), 0);
  EXPECT_THAT(failure("--xml " + folder.file("pipe.xml")), HasSubstr("no regular file"));
  EXPECT_THAT(failure("--ranks /dev/zero"), HasSubstr("no regular file"));
  EXPECT_THAT(failure("--ranks - </dev/zero"), HasSubstr("standard input"));
}

}  // namespace
}  // namespace annulus::topology_app
