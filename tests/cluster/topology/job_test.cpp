#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "cluster/topology/job.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Variables from(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Hosts, AreExpandedAsSlurmWritesThem) {
  EXPECT_THAT(expand_hosts("login"), ElementsAre("login"));
  EXPECT_THAT(expand_hosts("n[1-3,5],login"), ElementsAre("n1", "n2", "n3", "n5", "login"));
  EXPECT_THAT(expand_hosts("gpu[08-11]"), ElementsAre("gpu08", "gpu09", "gpu10", "gpu11"));
  EXPECT_THAT(expand_hosts("r[1-2]n[3-4]-ib"), ElementsAre("r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"));
  EXPECT_THAT(expand_hosts(""), IsEmpty());
  EXPECT_THAT(error_text([] { expand_hosts("n[1-3"); }),
              HasSubstr("'n[1-3' is no list of hosts: its brackets do not match"));
  EXPECT_THAT(error_text([] { expand_hosts("n[3-1]"); }), HasSubstr("the range 3-1 runs backwards"));
  EXPECT_THAT(error_text([] { expand_hosts("n[a-b]"); }), HasSubstr("'a' is not a number"));
}

TEST(Hosts, FewLettersDoNotStandForMoreThanMemoryHolds) {
  EXPECT_THAT(expand_hosts("n[2147483646-2147483647]"), ElementsAre("n2147483646", "n2147483647"));
  EXPECT_THAT(error_text([] { expand_hosts("n[0-9][0-9][0-9][0-9][0-9][0-9][0-9]"); }),
              HasSubstr("are more than 65536 hosts"));
  EXPECT_THAT(error_text([] { expand_hosts("n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][]"); }),
              HasSubstr("brackets with nothing in them"));
  EXPECT_THAT(error_text([] { expand_hosts(std::string(4000, 'n') + "[0-999999]"); }),
              HasSubstr("more than 255 characters"));
}

TEST(Counts, AreExpandedAsSlurmWritesThem) {
  EXPECT_THAT(expand_counts("4", "X"), ElementsAre(4));
  EXPECT_THAT(expand_counts("4(x2),3", "X"), ElementsAre(4, 4, 3));
  EXPECT_THAT(error_text([] { expand_counts("4(x2", "SLURM_TASKS_PER_NODE"); }),
              HasSubstr("'SLURM_TASKS_PER_NODE=4(x2' is no list of counts"));
  EXPECT_THAT(error_text([] { expand_counts("0,2", "X"); }), HasSubstr("X=0,2 has an entry of 0"));
  EXPECT_THAT(error_text([] { expand_counts("2147483647(x2)", "X"); }),
              HasSubstr("X=2147483647(x2) are more than 4194304 in all"));
}

TEST(Switches, LeavesKnowTheirPathAndHosts) {
  const auto leaves = parse_switches(
      "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2] \n"
      "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
      "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n");
  ASSERT_EQ(leaves.size(), 2U);
  EXPECT_EQ(leaves[0].path, "spine.leaf1");
  EXPECT_THAT(leaves[1].hosts, ElementsAre("n3", "n4"));
  EXPECT_THAT(parse_switches("slurm_load_topology error: No topology information available"), IsEmpty());
  std::string many;
  for (int i = 0; i < 3; ++i) many += "SwitchName=a Nodes=n[0-29999]\n";
  EXPECT_THAT(error_text([&] { parse_switches(many); }), HasSubstr("more than 65536 nodes"));
}

TEST(SlurmJob, BlockIsTheDefault) {
  const auto job = slurm_job(
      from({{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}}));
  ASSERT_TRUE(job);
  EXPECT_EQ(job->source, "Slurm job 17");
  EXPECT_THAT(job->hosts, ElementsAre("n1", "n2"));
  EXPECT_THAT(job->node_of_rank, ElementsAre(0, 0, 1, 1));
  EXPECT_FALSE(slurm_job(from({})));
}

TEST(SlurmJob, DistributionsAreFollowed) {
  std::map<std::string, std::string> base = {
      {"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "3,2"}};
  const auto nodes = [&](const std::string& distribution, const std::string& name = "",
                         const std::string& value = "") {
    auto all = base;
    all["SLURM_DISTRIBUTION"] = distribution;
    if (!name.empty()) all[name] = value;
    return slurm_job(from(all))->node_of_rank;
  };
  EXPECT_THAT(nodes("block:cyclic"), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(nodes("cyclic"), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(nodes("plane=2"), ElementsAre(0, 0, 1, 1, 0));
  EXPECT_THAT(nodes("plane", "SLURM_DIST_PLANESIZE", "2"), ElementsAre(0, 0, 1, 1, 0));
  EXPECT_THAT(nodes("arbitrary", "SLURM_ARBITRARY_NODELIST", "n2,n2,n1,n1,n1"), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(error_text([&] { nodes("arbitrary", "SLURM_ARBITRARY_NODELIST", "n2"); }),
              HasSubstr("lists 1 hosts for 5 ranks"));
}

TEST(SlurmJob, AStepGoesBeforeItsJob) {
  const auto job = slurm_job(from({{"SLURM_JOB_ID", "17"},
                                   {"SLURM_JOB_NODELIST", "n[1-4]"},
                                   {"SLURM_TASKS_PER_NODE", "8(x4)"},
                                   {"SLURM_STEP_NODELIST", "n[2-3]"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                   {"SLURM_TOPOLOGY_ADDR", "spine.leaf1.n2"},
                                   {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"}}));
  EXPECT_THAT(job->hosts, ElementsAre("n2", "n3"));
  EXPECT_THAT(job->node_of_rank, ElementsAre(0, 1));
  ASSERT_EQ(job->leaves.size(), 1U);  // all that the node is told without scontrol
  EXPECT_EQ(job->leaves[0].path, "spine.leaf1");
  EXPECT_EQ(job->leaf(0), 0);
  EXPECT_EQ(job->leaf(1), -1);
}

TEST(SlurmJob, ErrorsNameTheVariable) {
  EXPECT_THAT(error_text([] {
                slurm_job(from(
                    {{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_TASKS_PER_NODE", "1"}}));
              }),
              HasSubstr("SLURM_TASKS_PER_NODE=1 lists 1 nodes, but the job has 2 (a,b)"));
  EXPECT_THAT(error_text([] {
                slurm_job(from({{"SLURM_JOB_ID", "1"}, {"SLURM_HET_SIZE", "2"}}));
              }),
              mentions("heterogeneous (2 components)", "--constraint"));
}

TEST(JobOfRanks, ReadsWhatWhereAndSrunPrint) {
  const Job job = job_of_ranks("2 b\n0: a\n1: a\n3:  b\n\n", "list");
  EXPECT_THAT(job.hosts, ElementsAre("a", "b"));
  EXPECT_THAT(job.node_of_rank, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(error_text([] { job_of_ranks("0 a\n2 b\n", "list"); }),
            "list: 2 ranks, but the last is 2: some are missing");
  EXPECT_EQ(error_text([] { job_of_ranks("0 a\n0 b\n", "list"); }), "list:2: rank 0 is there twice");
  EXPECT_EQ(error_text([] { job_of_ranks("2147483647 a\n", "list"); }),
            "list: 1 ranks, but the last is 2147483647: some are missing");
  EXPECT_EQ(error_text([] { job_of_ranks("hello\n", "list"); }), "list:1: 'hello' is not 'RANK HOST'");
}

TEST(LaunchedRank, MpirunInsideOfSlurmGoesFirst) {
  const std::map<std::string, std::string> srun = {{"SLURM_PROCID", "5"},
                                                   {"SLURM_LOCALID", "1"},
                                                   {"SLURM_NODEID", "1"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "4,2"}};
  const auto by_srun = launched_rank(from(srun));
  ASSERT_TRUE(by_srun);
  EXPECT_EQ(by_srun->rank, 5);
  EXPECT_EQ(by_srun->local_rank, 1);
  EXPECT_EQ(by_srun->local_ranks, 2);
  auto both = srun;
  both.insert({{"OMPI_COMM_WORLD_RANK", "3"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(launched_rank(from(both))->local_ranks, 4);
  // A batch script has a rank by Slurm's variables, but no step.
  EXPECT_FALSE(launched_rank(from({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}})));
}

TEST(Slurm, HostFilesAreFiles) {
  std::map<std::string, std::string> job = {{"SLURM_JOB_ID", "7"},
                                            {"SLURM_JOB_NODELIST", "n[1-2]"},
                                            {"SLURM_TASKS_PER_NODE", "1(x2)"},
                                            {"SLURM_DISTRIBUTION", "arbitrary"}};
  const test::TemporaryFolder folder;
  job["SLURM_HOSTFILE"] = folder.write("hosts", "n2\nn1\n");
  EXPECT_THAT(slurm_job(from(job))->node_of_rank, ElementsAre(1, 0));
  job["SLURM_HOSTFILE"] = folder.file("pipe");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_text([&] { slurm_job(from(job)); }), mentions("/pipe'", "no regular file"));
}

TEST(Names, OfJobsAndHostsGiveTerminalsNoCommands) {
  const Job job =
      slurm_job(from({{"SLURM_JOB_ID", "7\x1b[2J"}, {"SLURM_JOB_NODELIST", "n\x1b[1-2]"}})).value();
  EXPECT_EQ(job.source, "Slurm job 7\\x1b[2J");
  EXPECT_THAT(job.hosts, ElementsAre("n\\x1b1", "n\\x1b2"));
  EXPECT_THAT(job_of_ranks("0 a\x1b\n", "ranks").hosts, ElementsAre("a\\x1b"));
}

TEST(SeveralRanks, AreThoseOfTheNearestLauncher) {
  const auto found = [](std::map<std::string, std::string> values) {
    const auto several = several_ranks(from(std::move(values)));
    return several
               ? several->evidence + " of rank " + std::to_string(several->rank) + ", " + several->launcher
               : std::string("one");
  };
  EXPECT_EQ(found({{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}}),
            "OMPI_COMM_WORLD_SIZE=3 of rank 2, mpirun of Open MPI");
  EXPECT_EQ(found({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "2"}}),
            "PMI_SIZE=2 of rank 1, mpiexec of MPICH or Intel MPI");
  EXPECT_EQ(found({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"SLURM_STEP_ID", "0"}}),
            "PMI_SIZE=2 of rank 0, srun --mpi=pmi2");
  // Outside of Slurm, and where a batch script starts another launcher.
  EXPECT_EQ(found({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), "PMI_SIZE=2 of rank 0, a launcher by PMI");
  EXPECT_EQ(found({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"SLURM_STEP_ID", "4294967291"}}),
            "PMI_SIZE=2 of rank 0, a launcher by PMI");
  EXPECT_EQ(found({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"FLUX_JOB_ID", "f1"}}),
            "PMI_SIZE=2 of rank 0, flux run");
  const std::map<std::string, std::string> srun{
      {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "1"}};
  EXPECT_EQ(found(srun), "SLURM_STEP_NUM_TASKS=4 of rank 1, srun");
  EXPECT_EQ(found({{"PMIX_RANK", "7"}}), "PMIX_RANK=7 of rank 7, a launcher by PMIx");
  EXPECT_FALSE(several_ranks(from({{"PMIX_RANK", "7"}}))->all_know);

  EXPECT_EQ(found({}), "one");
  EXPECT_EQ(found({{"PMIX_RANK", "0"}}), "one");
  // mpirun -n 1 whose daemons srun has started, and mpiexec -n 1 there.
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    auto single = srun;
    single[size] = "1";
    EXPECT_EQ(found(single), "one") << size;
  }
  // A batch script and the shell of salloc.
  for (const char* step : {"4294967291", "4294967290"}) {
    auto script = srun;
    script["SLURM_STEP_ID"] = step;
    EXPECT_EQ(found(script), "one") << step;
  }
  auto allocation = srun;
  allocation.erase("SLURM_STEP_ID");
  EXPECT_EQ(found(allocation), "one");
  EXPECT_THAT(error_text([&] { found({{"PMI_SIZE", "two"}}); }), HasSubstr("PMI_SIZE='two' is not a number"));
}

}  // namespace
}  // namespace annulus
