#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include <annulus/base/error.hpp>

#include "cluster/machine/environment.hpp"
#include "cluster/machine/nodes.hpp"

namespace annulus::machine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;

/// Values by name; those that were kept begin with "kept ".
std::map<std::string, std::string> settings(const Machine& machine, const Profile& profile, int local_rank,
                                            int local_ranks,
                                            const std::map<std::string, std::string>& before = {}) {
  const NodeResources resources = node_resources(machine, profile);
  const auto ranks = assign_ranks(machine, resources, local_ranks);
  std::map<std::string, std::string> values;
  for (const EnvironmentSetting& setting :
       settings_of(machine, resources, ranks[local_rank], profile, variables(before))) {
    EXPECT_FALSE(setting.why.empty());
    EXPECT_TRUE(values.emplace(setting.name, (setting.kept ? "kept " : "") + setting.value).second)
        << setting.name;
  }
  return values;
}

TEST(Environment, OfAnH100Rank) {
  const auto values = settings(node("h100-8"), {}, 5, 8);
  EXPECT_THAT(
      values,
      ElementsAre(Pair("ANNULUS_CPUS", "70-83,182-195"), Pair("ANNULUS_MEMORY_NODES", "1"),
                  Pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), Pair("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"),
                  Pair("NCCL_CROSS_NIC", "0"),  // every NIC is in an IP network of its own
                  Pair("NCCL_IB_HCA", "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"),
                  Pair("NCCL_SOCKET_IFNAME", "=ibs0,ibs3,ibs4,ibs5,ibs6,ibs9,ibs10,ibs11"),
                  Pair("OMPI_MCA_btl_tcp_if_include", "ibs0,ibs3,ibs4,ibs5,ibs6,ibs9,ibs10,ibs11"),
                  Pair("OMP_NUM_THREADS", "14"), Pair("OMP_PLACES", "cores"), Pair("OMP_PROC_BIND", "close"),
                  Pair("UCX_NET_DEVICES", "mlx5_9:1")));
}

// Two hardware threads per core: what Slurm counts as 8 CPUs are 4 cores.
TEST(Environment, AThreadForEachCoreOfTheLaunchsCpus) {
  const auto threads = [](const char* cpus) {
    return settings(node("h100-8"), {}, 5, 8, {{"ANNULUS_CPUS_PER_RANK", cpus}}).at("OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads("8"), "4");
  EXPECT_EQ(threads("7"), "4");
  EXPECT_EQ(threads("1"), "1");
  EXPECT_EQ(threads("28"), "14");
  EXPECT_EQ(threads("64"), "14");  // no more than the rank has
  EXPECT_THROW(threads("8x"), Error);
  EXPECT_THROW(threads("0"), Error);
}

TEST(Environment, WhatIsSetIsKept) {
  const auto values = settings(node("h100-8"), {}, 0, 8,
                               {{"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"}, {"OMP_NUM_THREADS", "3"}});
  EXPECT_EQ(values.at("CUDA_VISIBLE_DEVICES"), "kept 0,1,2,3,4,5,6,7");
  EXPECT_EQ(values.at("OMP_NUM_THREADS"), "kept 3");
}

TEST(Environment, FabricDecidesCrossNic) {
  Profile profile;
  profile.fabric = Fabric::flat;
  EXPECT_EQ(settings(node("gpu-4"), profile, 0, 4).at("NCCL_CROSS_NIC"), "1");
  profile.fabric = Fabric::rails;
  EXPECT_EQ(settings(node("gpu-4"), profile, 0, 4).at("NCCL_CROSS_NIC"), "0");
  EXPECT_THAT(settings(node("gpu-4"), {}, 0, 4),
              Not(Contains(Key("NCCL_CROSS_NIC"))));  // not known: NCCL's own default
}

TEST(Environment, ProfilesWordGoesBeforeWhatIsDerivedAndBehindTheUsers) {
  Profile profile;
  profile.interfaces = {"eno3"};
  profile.environment = {{"OMP_PROC_BIND", "spread"}, {"NCCL_DEBUG", "WARN"}};
  const auto values = settings(node("h100-8"), profile, 0, 8, {{"NCCL_DEBUG", "INFO"}});
  EXPECT_EQ(values.at("NCCL_SOCKET_IFNAME"), "=eno3");
  EXPECT_EQ(values.at("OMPI_MCA_btl_tcp_if_include"), "eno3");
  EXPECT_EQ(values.at("OMP_PROC_BIND"), "spread");
  EXPECT_EQ(values.at("NCCL_DEBUG"), "kept INFO");
}

TEST(Environment, OfACpuRankHasNothingOfGpus) {
  const auto values = settings(node("cpu"), {}, 1, 2);
  EXPECT_EQ(values.at("UCX_NET_DEVICES"), "mlx5_0:1");
  EXPECT_EQ(values.at("OMPI_MCA_btl_tcp_if_include"), "ib0");
  EXPECT_EQ(values.at("ANNULUS_CPUS"), "64-127");
  EXPECT_EQ(values.at("OMP_NUM_THREADS"), "64");
  for (const auto& [name, value] : values) EXPECT_THAT(name, Not(HasSubstr("NCCL")));
  EXPECT_THAT(values, Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));
}

TEST(Environment, CardsThatAreAsNearAreDividedAmongTheRanks) {
  Machine machine = node("cpu");
  Nic second = *std::find_if(machine.nics.begin(), machine.nics.end(),
                             [](const Nic& nic) { return nic.device == "mlx5_0"; });
  second.device = "mlx5_1";
  second.locality.numa = second.locality.socket = 1;
  machine.nics.push_back(second);
  EXPECT_EQ(settings(machine, {}, 0, 2).at("UCX_NET_DEVICES"), "mlx5_0:1");
  EXPECT_EQ(settings(machine, {}, 1, 2).at("UCX_NET_DEVICES"), "mlx5_1:1");
  // One rank has cores beside both.
  EXPECT_EQ(settings(machine, {}, 0, 1).at("UCX_NET_DEVICES"), "mlx5_0:1,mlx5_1:1");
  machine.nics.back().locality = machine.nics.front().locality;
  machine.nics.push_back(second);
  machine.nics.back().device = "mlx5_2";
  EXPECT_EQ(settings(machine, {}, 1, 2).at("UCX_NET_DEVICES"), "mlx5_2:1");
}

TEST(Environment, EthernetCardsInNetworksOfTheirOwnAreAllNeeded) {
  Machine machine = node("h100-8");
  for (Nic& nic : machine.nics) {
    if (nic.kind == NicKind::infiniband) nic.kind = NicKind::roce;
  }
  EXPECT_EQ(settings(machine, {}, 5, 8).at("UCX_NET_DEVICES"),
            "mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1");
  Profile flat;
  flat.fabric = Fabric::flat;
  EXPECT_EQ(settings(machine, flat, 5, 8).at("UCX_NET_DEVICES"), "mlx5_9:1");
}

TEST(Environment, EthernetAlone) {
  Profile profile;
  profile.kind = NicKind::ethernet;
  profile.interfaces = {"eno1"};
  const auto values = settings(node("cpu"), profile, 0, 2);
  EXPECT_EQ(values.at("UCX_NET_DEVICES"), "eno1");
  EXPECT_EQ(values.at("OMPI_MCA_btl_tcp_if_include"), "eno1");
}

}  // namespace
}  // namespace annulus::machine
