// What the transport `automatic` stands for, given where the GPUs of the ranks are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "attention/comm/gpu_ids.hpp"

namespace annulus::comm {
namespace {

using testing::HasSubstr;

GpuId place(std::string_view machine, std::string_view bus, bool nccl = true) {
  GpuId made;
  machine.copy(made.machine.data(), made.machine.size() - 1);
  made.node = made.machine;
  bus.copy(made.bus.data(), made.bus.size() - 1);
  made.nccl = nccl ? 1 : 0;
  return made;
}

// The addresses count, not how many GPUs a rank sees: a launcher may show each rank its own alone.
TEST(ChooseTransport, NcclWhereAllGpusDiffer) {
  const std::vector one{place("a", "0000:1b:00.0")};
  EXPECT_EQ(choose_transport(one).transport, Transport::nccl);
  const std::vector four{place("a", "0000:1b:00.0"), place("a", "0000:43:00.0"), place("b", "0000:1b:00.0"),
                         place("b", "0000:43:00.0")};
  EXPECT_EQ(choose_transport(four).transport, Transport::nccl);
  EXPECT_EQ(choose_transport(four).reason, "every rank has a GPU of its own");
  EXPECT_FALSE(sharing_a_gpu(four));
}

TEST(ChooseTransport, MpiWhereRanksShareAGpu) {
  const std::vector ranks{place("a", "0000:1b:00.0"), place("b", "0000:1b:00.0"), place("b", "0000:43:00.0"),
                          place("b", "0000:1b:00.0")};
  EXPECT_EQ(sharing_a_gpu(ranks), std::pair(1, 3));
  const TransportChoice choice = choose_transport(ranks);
  EXPECT_EQ(choice.transport, Transport::mpi);
  EXPECT_EQ(choice.reason, "ranks 1 and 3 share the GPU 0000:1b:00.0 of b");
}

// NCCL_HOSTID makes one machine stand for several nodes. Their ranks share GPUs, which NCCL lets them do, but
// nobody who has not asked for it.
TEST(ChooseTransport, EmulatedNodesShareGpusToo) {
  std::vector ranks{place("a", "0000:1b:00.0"), place("a", "0000:1b:00.0"), place("a", "0000:1b:00.0")};
  EXPECT_EQ(sharing_a_gpu_of_a_node(ranks), std::pair(0, 1));
  ranks[1].node = {'o', 't', 'h', 'e', 'r'};
  EXPECT_EQ(sharing_a_gpu(ranks), std::pair(0, 1));
  EXPECT_EQ(sharing_a_gpu_of_a_node(ranks), std::pair(0, 2));
  EXPECT_EQ(choose_transport(std::span(ranks).first(2)).transport, Transport::mpi);
  EXPECT_FALSE(sharing_a_gpu_of_a_node(std::span(ranks).first(2)));
}

TEST(ChooseTransport, MpiWhereARankHasNoGpuOrNoNccl) {
  const std::vector no_gpu{place("a", "0000:1b:00.0"), place("b", ""), place("b", "")};
  EXPECT_EQ(choose_transport(no_gpu).transport, Transport::mpi);
  EXPECT_EQ(choose_transport(no_gpu).reason, "rank 1 on b has no GPU");
  EXPECT_FALSE(sharing_a_gpu(no_gpu)) << "two ranks without GPUs share none";
  const std::vector no_nccl{place("a", "0000:1b:00.0"), place("a", "0000:43:00.0", false)};
  EXPECT_EQ(choose_transport(no_nccl).transport, Transport::mpi);
  EXPECT_EQ(choose_transport(no_nccl).reason, "rank 1 runs a program that was built without NCCL");
}

TEST(GpuIds, AreGatheredInTheOrderOfTheRanks) {
  const MpiEnvironment mpi;
  const auto world = mpi.world();
  const std::vector<GpuId> all = gather_gpu_ids(*world);
  ASSERT_EQ(static_cast<int>(all.size()), mpi.size());
  for (const GpuId& each : all) {
    EXPECT_EQ(each.machine_text(), all[0].machine_text()) << "tests run on one machine";
    EXPECT_EQ(each.nccl == 1, has_nccl());
  }
}

TEST(MpiWorld, DescriptionEndsWithTheRemark) {
  const MpiEnvironment mpi;
  EXPECT_THAT(mpi.world(0, "not NCCL, as rank 0 has no GPU")->description(),
              HasSubstr(", not NCCL, as rank 0 has no GPU"));
}

}  // namespace
}  // namespace annulus::comm
