// Node types as hwloc describes them: what is near what, and who gets which part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <numeric>
#include <set>

#include "cluster/machine/nodes.hpp"
#include "support/error_text.hpp"

namespace annulus::machine {
namespace {

using test::error_text;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> cpu_lists(const Machine& machine, const std::vector<RankBinding>& ranks) {
  std::vector<std::string> lists;
  for (const RankBinding& rank : ranks) lists.push_back(list_text(cpus_of(machine, rank)));
  return lists;
}

/// No logical CPU belongs to two ranks.
void expect_disjoint(const Machine& machine, const std::vector<RankBinding>& ranks) {
  std::set<int> seen;
  for (const RankBinding& rank : ranks) {
    for (const int cpu : cpus_of(machine, rank)) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
  }
}

TEST(ListText, JoinsRanges) {
  EXPECT_EQ(list_text({}), "");
  EXPECT_EQ(list_text({8, 3, 2, 1, 0}), "0-3,8");
  EXPECT_EQ(list_text({1, 3, 4}), "1,3-4");
}

TEST(A100Node, DevicesAreWhereTheDiagramHasThem) {
  const Machine machine = node("a100-8");
  EXPECT_EQ(machine.host, "a100-8");
  EXPECT_EQ(machine.sockets, 2);
  ASSERT_THAT(machine.numa, SizeIs(8));
  EXPECT_EQ(machine.numa[5].socket, 1);
  EXPECT_THAT(machine.cores, SizeIs(128));
  ASSERT_THAT(machine.gpus, SizeIs(8));
  ASSERT_THAT(machine.nics, SizeIs(10));
  std::vector<std::string> buses;
  std::vector<int> numa;
  for (const Gpu& gpu : machine.gpus) {
    buses.push_back(gpu.locality.bus.substr(5, 2));
    numa.push_back(gpu.locality.numa);
    EXPECT_EQ(gpu.ordinal, static_cast<int>(buses.size()) - 1);
    EXPECT_EQ(gpu.name, "NVIDIA A100-SXM4-80GB");
    EXPECT_EQ(gpu.nvlinks, 12);
    EXPECT_TRUE(gpu.nvswitch);
    EXPECT_THAT(gpu.locality.cores, SizeIs(16));
  }
  EXPECT_THAT(buses, ElementsAre("07", "0f", "47", "4e", "87", "90", "b7", "bd"));
  EXPECT_THAT(numa, ElementsAre(3, 3, 1, 1, 7, 7, 5, 5));
  EXPECT_EQ(machine.software.at("NCCL"), "2.21.5");
}

TEST(A100Node, ReachFollowsSwitchesAndSockets) {
  const Machine machine = node("a100-8");
  // Cards in the order of the bus: mlx5_0, 1, 2, 3, 4 (storage), 6, 7, 8, 9, 10 (storage).
  EXPECT_THAT(machine.paths[0],
              ElementsAre(PathType::pcie_switch, PathType::pcie_switch, PathType::socket, PathType::socket,
                          PathType::socket, PathType::system, PathType::system, PathType::system,
                          PathType::system, PathType::system));
  EXPECT_EQ(machine.nics[4].kind, NicKind::roce);
  EXPECT_EQ(machine.nics[5].kind, NicKind::infiniband);
}

TEST(A100Node, EachGpuHasACardOfItsSwitch) {
  const Machine machine = node("a100-8");
  Profile profile;
  profile.kind = NicKind::infiniband;
  const NodeResources resources = node_resources(machine, profile);
  EXPECT_THAT(texts(resources.diagnostics), IsEmpty());
  const auto ranks = assign_ranks(machine, resources, 8);
  EXPECT_THAT(nics_of(machine, resources, ranks),
              ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"));
  EXPECT_THAT(cpu_lists(machine, ranks),
              ElementsAre("48-55", "56-63", "16-23", "24-31", "112-119", "120-127", "80-87", "88-95"));
  for (const RankBinding& rank : ranks) EXPECT_EQ(rank.path, PathType::pcie_switch);
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)), IsEmpty());
}

TEST(A100Node, StorageCardsAsFastAreLeftAsideWithAWarning) {
  const Machine machine = node("a100-8");
  const NodeResources resources = node_resources(machine, {});
  EXPECT_THAT(nics(machine, resources),
              ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"));
  EXPECT_THAT(texts(resources.diagnostics),
              ElementsAre(mentions("left are mlx5_10, mlx5_4", "network.devices")));
}

TEST(H100Node, HardwareThreadsGoWithTheirCores) {
  const Machine machine = node("h100-8");
  EXPECT_EQ(machine.hardware_threads(), 224);
  Profile profile;
  profile.devices = {"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"};
  profile.nics = 8;
  const NodeResources resources = node_resources(machine, profile);
  EXPECT_THAT(texts(resources.diagnostics), IsEmpty());
  const auto ranks = assign_ranks(machine, resources, 8);
  EXPECT_EQ(nics_of(machine, resources, ranks), profile.devices);
  EXPECT_EQ(list_text(cpus_of(machine, ranks[0])), "0-13,112-125");
  EXPECT_EQ(list_text(cpus_of(machine, ranks[7])), "98-111,210-223");
  EXPECT_THAT(ranks[7].numa, ElementsAre(1));
  EXPECT_EQ(machine.paths[0][1], PathType::numa);  // the storage NIC of its socket
  expect_disjoint(machine, ranks);
}

TEST(H100Node, FewerRanksWarnOfIdleGpus) {
  const Machine machine = node("h100-8");
  const NodeResources resources = node_resources(machine, {});
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)),
              ElementsAre(mentions("h100-8: 4 of 8 GPUs stay idle", "--ntasks-per-node=8")));
  EXPECT_EQ(list_text(cpus_of(machine, ranks[0])),
            "0-13,112-125");  // four GPUs of one socket share its cores
}

TEST(H100Node, MoreRanksThanGpusArePlacedByCores) {
  const Machine machine = node("h100-8");
  const NodeResources resources = node_resources(machine, {});
  const auto ranks = assign_ranks(machine, resources, 16);
  EXPECT_EQ(ranks[3].gpu, -1);
  EXPECT_THAT(ranks[3].cores, SizeIs(7));
  expect_disjoint(machine, ranks);
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)), Contains(HasSubstr("16 ranks for 8 GPUs")));
}

TEST(H100Node, SlurmsChoiceOfGpusIsFollowed) {
  const Machine machine = node("h100-8");
  NodeResources resources = node_resources(machine, {});
  restrict_gpus(machine, "6,2", 2, 2, resources);
  const auto ranks = assign_ranks(machine, resources, 2);
  EXPECT_EQ(ranks[0].gpu, 6);
  EXPECT_EQ(ranks[1].gpu, 2);
  EXPECT_THAT(nics_of(machine, resources, ranks), ElementsAre("mlx5_10", "mlx5_4"));
  EXPECT_THAT(ranks[0].numa, ElementsAre(1));
  // One rank's own list says nothing of the others.
  resources = node_resources(machine, {});
  restrict_gpus(machine, "3", 8, 8, resources);
  EXPECT_THAT(resources.gpus, SizeIs(8));
}

TEST(FourGpuNode, IsReadWithoutAnnulusAttributes) {
  const Machine machine = node("gpu-4");
  const NodeResources resources = node_resources(machine, {});
  EXPECT_THAT(texts(resources.diagnostics), IsEmpty());
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_THAT(nics_of(machine, resources, ranks), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(cpu_lists(machine, ranks), ElementsAre("18-23", "6-11", "42-47", "30-35"));
  EXPECT_EQ(machine.nics[0].kind, NicKind::infiniband);  // by its PCI class
  EXPECT_EQ(machine.nics[1].kind, NicKind::infiniband);  // by its interface's address
  EXPECT_EQ(machine.gpus[0].ordinal, 0);
}

TEST(FourGpuNode, OneCardIsTooFew) {
  const Machine machine = node("gpu-4");
  Profile profile;
  profile.devices = {"mlx5_0"};
  profile.nics = 1;
  const NodeResources resources = node_resources(machine, profile);
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)),
              ElementsAre(mentions("local ranks 2, 3 reach the nearest NIC, mlx5_0, only across the sockets"),
                          mentions("1 NIC for 4 ranks", "mlx5_0 by ranks 0, 1, 2, 3")));
}

TEST(FourGpuNode, CoresThatTheJobDidNotGetAreLeftOut) {
  const Machine machine = node("gpu-4");
  const NodeResources resources = node_resources(machine, {});
  std::vector<int> bound(12);
  std::iota(bound.begin(), bound.end(), 0);  // NUMA nodes 0 and 1: near GPU 1 alone
  const auto ranks = assign_ranks(machine, resources, 4, bound);
  EXPECT_THAT(cpu_lists(machine, ranks), ElementsAre("0-2", "3-5", "6-8", "9-11"));
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)),
              Contains(mentions("not those next to the GPUs of local ranks 0, 1, 2, 3", "--exclusive")));
  const auto crowded = assign_ranks(machine, resources, 4, {0, 1});
  EXPECT_TRUE(crowded[0].shared);
  EXPECT_THAT(texts(check_ranks(machine, resources, crowded)),
              Contains(HasSubstr("fewer cores than ranks are allowed")));
}

TEST(Gh200Node, RanksHaveASocketEachAndTheProfileHolds) {
  const Machine machine = node("gh200-4");
  ASSERT_THAT(machine.numa, SizeIs(4)) << "memory of the GPUs is none of the host's";
  const NodeResources resources = node_resources(machine, read_profile(ANNULUS_PROFILES "/gh200-4.toml"));
  EXPECT_THAT(texts(resources.diagnostics), IsEmpty());
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_THAT(texts(check_ranks(machine, resources, ranks)), IsEmpty());
  EXPECT_THAT(nics_of(machine, resources, ranks), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(cpu_lists(machine, ranks), ElementsAre("0-71", "72-143", "144-215", "216-287"));
  for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(memory_of(machine, ranks[rank]), ElementsAre(rank));
}

TEST(CpuNode, RanksShareItsCoresAndCard) {
  const Machine machine = node("cpu");
  const NodeResources resources = node_resources(machine, {});
  EXPECT_THAT(nics(machine, resources), ElementsAre("mlx5_0"));
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_THAT(cpu_lists(machine, ranks), ElementsAre("0-31", "32-63", "64-95", "96-127"));
  EXPECT_THAT(
      texts(check_ranks(machine, resources, ranks)),
      Contains(HasSubstr("cpu: local ranks 2, 3 reach the nearest NIC, mlx5_0, only across the sockets")));
  EXPECT_THAT(cpu_lists(machine, assign_ranks(machine, resources, 3)),
              ElementsAre("0-42", "43-85", "86-127"));
}

TEST(Nodes, ThatDifferAreRefused) {
  Machine other = node("h100-8");
  other.host = "n2";
  EXPECT_THAT(check_alike({node("h100-8"), other}), IsEmpty());
  other.software["NCCL"] = "2.20.5";
  other.clock += 100;
  EXPECT_THAT(
      texts(check_alike({node("h100-8"), other})),
      ElementsAre(mentions("error: nodes differ: h100-8 has NCCL 2.21.5, and n2 has 2.20.5", "--exclude=n2"),
                  HasSubstr("h100-8 and n2 were described 100 s apart")));
  EXPECT_THAT(texts(check_alike({node("h100-8"), node("a100-8")})),
              Contains(HasSubstr("error: nodes differ: h100-8 has GPUs: 8 × NVIDIA H100 80GB HBM3, and "
                                 "a100-8 has 8 × NVIDIA A100")));
}

TEST(Nodes, ErrorsNameTheFile) {
  EXPECT_THAT(error_text([] { read_machine("/nowhere.xml"); }), HasSubstr("'/nowhere.xml': No such file"));
  EXPECT_THAT(error_text([] { read_machine(ANNULUS_PROFILE_FORMAT); }), HasSubstr("site-profile.md: hwloc"));
}

/// hwloc goes on where it gets no memory for a set: the copy that reads a file first must say so.
TEST(Nodes, FilesThatTakeGigabytesAreRefusedByTheirCopy) {
  EXPECT_THAT(error_text([] { read_machine(ANNULUS_HWLOC_CORPUS "/no_index"); }),
              mentions("no_index", "cannot read it"));
  EXPECT_FALSE(read_machine(ANNULUS_HWLOC_CORPUS "/node").cores.empty());
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 900 << 10);
}

TEST(ThisMachine, IsDescribedAndReadBack) {
  const Description description = describe_this_machine();
  EXPECT_FALSE(description.machine.host.empty());
  EXPECT_THAT(description.machine.cores, Each(testing::Field(&Core::cpus, testing::Not(IsEmpty()))));
  EXPECT_FALSE(description.machine.software.at("annulus").empty());
  const std::string path = testing::TempDir() + "/annulus_this_machine.xml";
  FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs(description.xml.c_str(), file);
  std::fclose(file);
  const Machine again = read_machine(path);
  std::remove(path.c_str());
  EXPECT_THAT(check_alike({description.machine, again}), IsEmpty());
  ASSERT_EQ(again.nics.size(), description.machine.nics.size());
  for (std::size_t i = 0; i < again.nics.size(); ++i) {
    EXPECT_EQ(again.nics[i].name(), description.machine.nics[i].name());
    EXPECT_EQ(again.nics[i].address, description.machine.nics[i].address);
  }
}

}  // namespace
}  // namespace annulus::machine
